/* Threads that share the work of a kernel, and the functions that compiled code calls. */
#include "internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A worker looks for work so often before it sleeps, some 100 us in all: pauses between kernels are shorter. */
enum { LOOKS = 4000, MAX_BLOCKS = 16, ERROR_BYTES = 512 };

/* What a kernel calls in each of its tasks. */
typedef struct {
  void *barrier;
  int32_t tasks;
} Environment;
typedef int (*Task)(int number, Environment *environment, void *data);

/* A piece of memory that kernels borrow, and keep for the next. */
typedef struct {
  void *address;
  size_t size_bytes;
  bool is_taken;
} Memory;
typedef struct {
  Crew *crew;
  pthread_t thread;
  Memory blocks[MAX_BLOCKS];
} Member;

struct Crew {
  int threads;
  /* The job: its number, how many tasks it has, and the next; one word, so that a task is taken from no other job. */
  _Atomic uint64_t job;
  Task task;
  void *data;
  atomic_int left, failed, sleeping, has_waiter;
  atomic_bool ends;
  pthread_mutex_t lock;
  pthread_cond_t begun, done;
  char error[ERROR_BYTES];
  Member members[];
};

static _Thread_local Member *self;
static _Thread_local char raised[ERROR_BYTES];

static void pause_briefly(void) {
#ifdef __x86_64__
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

static bool has_task(uint64_t job) { return (job & 0xFFFF) < (job >> 16 & 0xFFFF); }

static bool run_task(Crew *crew) {
  uint64_t job = atomic_load(&crew->job);
  do {
    if (!has_task(job)) return false;
  } while (!atomic_compare_exchange_weak(&crew->job, &job, job + 1));
  Environment environment = {NULL, (int32_t)(job >> 16 & 0xFFFF)};
  if (crew->task((int)(job & 0xFFFF), &environment, crew->data) && !atomic_exchange(&crew->failed, 1))
    memcpy(crew->error, raised, sizeof raised);
  if (atomic_fetch_sub(&crew->left, 1) == 1 && atomic_load(&crew->has_waiter)) {
    pthread_mutex_lock(&crew->lock);
    pthread_cond_signal(&crew->done);
    pthread_mutex_unlock(&crew->lock);
  }
  return true;
}

static void *work(void *member) {
  self = member;
  Crew *crew = self->crew;
  while (!atomic_load(&crew->ends)) {
    int looks = 0;
    while (!has_task(atomic_load(&crew->job)) && looks < LOOKS) {
      pause_briefly();
      looks++;
    }
    if (run_task(crew) || looks < LOOKS) continue;
    pthread_mutex_lock(&crew->lock);
    atomic_fetch_add(&crew->sleeping, 1);
    while (!has_task(atomic_load(&crew->job)) && !atomic_load(&crew->ends))
      pthread_cond_wait(&crew->begun, &crew->lock);
    atomic_fetch_sub(&crew->sleeping, 1);
    pthread_mutex_unlock(&crew->lock);
  }
  return NULL;
}

static void wake(Crew *crew) {
  pthread_mutex_lock(&crew->lock);
  pthread_cond_broadcast(&crew->begun);
  pthread_mutex_unlock(&crew->lock);
}

/* TVMBackendParallelLaunch: each of `tasks`, or a task for each thread where that is 0. */
static int launch(Task task, void *data, int tasks) {
  Crew *crew = self ? self->crew : NULL;
  /* A task that itself launches some has one thread. */
  if (!crew || self != crew->members || crew->threads == 1 || tasks == 1) {
    Environment alone = {NULL, 1};
    return task(0, &alone, data);
  }
  uint64_t count = (uint64_t)(tasks && tasks < crew->threads ? tasks : crew->threads);
  crew->task = task;
  crew->data = data;
  atomic_store(&crew->failed, 0);
  atomic_store(&crew->left, (int)count);
  atomic_store(&crew->job, ((atomic_load(&crew->job) >> 32) + 1) << 32 | count << 16);
  if (atomic_load(&crew->sleeping)) wake(crew);
  while (run_task(crew)) {
  }
  for (int looks = 0; looks < LOOKS && atomic_load(&crew->left); looks++) pause_briefly();
  if (atomic_load(&crew->left)) {
    pthread_mutex_lock(&crew->lock);
    atomic_store(&crew->has_waiter, 1);
    while (atomic_load(&crew->left)) pthread_cond_wait(&crew->done, &crew->lock);
    atomic_store(&crew->has_waiter, 0);
    pthread_mutex_unlock(&crew->lock);
  }
  if (!atomic_load(&crew->failed)) return 0;
  memcpy(raised, crew->error, sizeof raised);
  return -1;
}

static void *new_memory(size_t size_bytes) {
  return aligned_alloc(ALIGNMENT, (size_bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT);
}

/* TVMBackendAllocWorkspace: the smallest piece that is large enough, a larger one in its place, or one of its own. */
static void *borrow(int device_type, int device, uint64_t size_bytes, int code, int bits) {
  (void)device, (void)code, (void)bits;
  if (device_type != DEVICE_CPU) return NULL;
  Memory *best = NULL, *spare = NULL;
  for (int i = 0; self && i < MAX_BLOCKS; i++) {
    Memory *each = &self->blocks[i];
    if (each->is_taken) continue;
    if (!spare || each->size_bytes < spare->size_bytes) spare = each;
    if (each->size_bytes >= size_bytes && each->address && (!best || each->size_bytes < best->size_bytes)) best = each;
  }
  if (!best && !spare) return new_memory(size_bytes);
  if (!best) {
    best = spare;
    free(best->address);
    best->address = new_memory(size_bytes);
    best->size_bytes = best->address ? size_bytes : 0;
  }
  best->is_taken = best->address != NULL;
  return best->address;
}

/* TVMBackendFreeWorkspace. */
static int give_back(int device_type, int device, void *address) {
  (void)device_type, (void)device;
  for (int i = 0; self && i < MAX_BLOCKS; i++)
    if (self->blocks[i].address == address && address) {
      self->blocks[i].is_taken = false;
      return 0;
    }
  free(address);
  return 0;
}

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  size_t end = (size_t)snprintf(raised, sizeof raised, "%s: ", kind);
  for (int32_t i = 0; i < count && end < sizeof raised; i++)
    if (parts[i]) end += (size_t)snprintf(raised + end, sizeof raised - end, "%s", parts[i]);
}

const char *crew_error(void) { return *raised ? raised : "it did not say why"; }

void crew_enter(Crew *crew) {
  self = crew ? crew->members : NULL;
  if (crew) raised[0] = 0;
}

Crew *crew_new(int threads) {
  Crew *crew = calloc(1, sizeof *crew + (size_t)threads * sizeof *crew->members);
  if (!crew) return fail("there is no memory for %d threads", threads);
  pthread_mutex_init(&crew->lock, NULL);
  pthread_cond_init(&crew->begun, NULL);
  pthread_cond_init(&crew->done, NULL);
  crew->members->crew = crew;
  crew->threads = 1;
  for (int i = 1; i < threads; i++) {
    crew->members[i].crew = crew;
    int problem = pthread_create(&crew->members[i].thread, NULL, work, &crew->members[i]);
    if (problem) {
      crew_free(crew, false);
      return fail("%d threads cannot be started (%s)", threads, strerror(problem));
    }
    crew->threads = i + 1;
  }
  return crew;
}

void crew_free(Crew *crew, bool is_of_parent) {
  atomic_store(&crew->ends, true);
  if (!is_of_parent) wake(crew);
  for (int i = 0; i < crew->threads; i++) {
    if (i && !is_of_parent) pthread_join(crew->members[i].thread, NULL);
    for (int j = 0; j < MAX_BLOCKS; j++) free(crew->members[i].blocks[j].address);
  }
  if (!is_of_parent) {
    pthread_cond_destroy(&crew->begun);
    pthread_cond_destroy(&crew->done);
    pthread_mutex_destroy(&crew->lock);
  }
  free(crew);
}

static void provide(void *library, const Function *functions) {
  for (; functions->name; functions++) {
    /* Another thread may load the same library, and write the same. */
    _Atomic(void *) *place = dlsym(library, functions->name);
    if (place) atomic_store(place, functions->function);
  }
}

void provide_functions(void *library) {
  static const Function FUNCTIONS[] = {{"__TVMBackendParallelLaunch", (void *)launch},
                                       {"__TVMBackendAllocWorkspace", (void *)borrow},
                                       {"__TVMBackendFreeWorkspace", (void *)give_back},
                                       {NULL, NULL}};
  provide(library, FUNCTIONS);
  provide(library, GPU_FUNCTIONS);
}
