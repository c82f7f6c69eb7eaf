/* Branches side by side: on a stream kernels follow each other, and what is captured from it may have other edges. */
#include "branches.h"

#include <stdlib.h>
#include <string.h>

enum { SET_DEPENDENCIES = 1 };

/* Nodes of the graph, behind a step: what comes to the stream then would run after these. */
typedef struct {
  void **nodes;
  size_t count;
} Nodes;

static bool take_nodes(const Driver *driver, void *stream, Nodes *taken) {
  int status;
  void *const *nodes;
  const void *edges;
  if (!CALL(driver, cuStreamGetCaptureInfo_v3, stream, &status, NULL, NULL, &nodes, &edges, &taken->count)) return false;
  taken->nodes = malloc(taken->count * sizeof *nodes + 1);
  if (!taken->nodes) return fail("there is no memory for a graph");
  if (taken->count) memcpy(taken->nodes, nodes, taken->count * sizeof *nodes);
  return true;
}

/* What comes to the stream now runs after these steps, and after no others. */
static bool run_after(const Driver *driver, void *stream, const Nodes *taken, const Steps *steps) {
  size_t count = 0;
  for (uint32_t i = 0; i < steps->count; i++) count += taken[steps->numbers[i]].count;
  void **nodes = malloc(count * sizeof *nodes + 1);
  if (!nodes) return fail("there is no memory for a graph");
  count = 0;
  for (uint32_t i = 0; i < steps->count; i++) {
    const Nodes *each = &taken[steps->numbers[i]];
    for (size_t j = 0; j < each->count; j++) {
      size_t at = 0;
      while (at < count && nodes[at] != each->nodes[j]) at++;
      nodes[at] = each->nodes[j];
      count += at == count;
    }
  }
  bool is_done = CALL(driver, cuStreamUpdateCaptureDependencies_v2, stream, nodes, NULL, count, SET_DEPENDENCIES);
  free(nodes);
  return is_done;
}

bool record_branches(tvm_sparse_context *context, const Driver *driver, void *stream) {
  const tvm_sparse_model *model = context->model;
  Nodes *taken = calloc(model->step_count + 1, sizeof *taken);
  bool is_done = taken || fail("there is no memory for a graph");
  for (uint32_t i = 0; is_done && i < model->step_count; i++) {
    const Steps *after = &model->steps[i].after;
    is_done = !after->count || run_after(driver, stream, taken, after);
    is_done = is_done && run_step(context, i) && take_nodes(driver, stream, &taken[i]);
  }
  is_done = is_done && run_after(driver, stream, taken, &model->ends);
  for (uint32_t i = 0; taken && i < model->step_count; i++) free(taken[i].nodes);
  free(taken);
  return is_done;
}
