/* Puts every aligned block of memory between pages that nobody may touch; to be preloaded into a process.

   TVM and torch take the memory of tensors from posix_memalign. Here each block ends at the end of its last page, or with
   GUARD_SIDE=start begins at the beginning of its first one, and the pages before and behind it are not mapped: what reads
   or writes there dies of SIGSEGV. What alignment leaves of the block's own pages is filled with CANARY, which as a float is
   a NaN, and looked at when the block is freed. Freed memory is not used again. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, LEAST_ALIGNMENT = 64 };
static const unsigned char CANARY = 0xFF;
static const uint64_t ARENA_PAGES = 1ull << 26; /* 256 GiB of addresses */

/* What lies in the pages from a block's first one on. */
struct block {
  uint64_t pages;
  uint64_t offset;
  uint64_t bytes;
};

static char *arena;
static struct block *blocks;
static uint64_t next_page;
static int at_start;

extern void __libc_free(void *);

__attribute__((constructor)) static void prepare(void) {
  if (arena) return;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  blocks = mmap(NULL, ARENA_PAGES * sizeof(struct block), PROT_READ | PROT_WRITE, flags, -1, 0);
  char *found = mmap(NULL, ARENA_PAGES * PAGE, PROT_NONE, flags, -1, 0);
  if (found == MAP_FAILED || blocks == MAP_FAILED) abort();
  const char *side = getenv("GUARD_SIDE");
  at_start = side && !strcmp(side, "start");
  arena = found;
}

static void *guarded(uint64_t alignment, uint64_t bytes) {
  prepare();
  uint64_t pages = (bytes + PAGE - 1) / PAGE + (alignment > PAGE ? alignment / PAGE : 0);
  if (!pages) pages = 1;
  uint64_t first = __atomic_fetch_add(&next_page, pages + 1, __ATOMIC_RELAXED) + 1;
  if (first + pages >= ARENA_PAGES) return NULL;
  char *base = arena + first * PAGE;
  if (mprotect(base, pages * PAGE, PROT_READ | PROT_WRITE)) return NULL;
  uint64_t room = pages * PAGE - bytes;
  char *block = at_start ? base : base + room;
  block = (char *)((uintptr_t)block / alignment * alignment);
  if (block < base) block += alignment;
  blocks[first] = (struct block){pages, block - base, bytes};
  memset(base, CANARY, pages * PAGE);
  return block;
}

int posix_memalign(void **result, size_t alignment, size_t bytes) {
  if (alignment < LEAST_ALIGNMENT) alignment = LEAST_ALIGNMENT;
  *result = guarded(alignment, bytes);
  return *result ? 0 : ENOMEM;
}

static void require_canary(const char *from, const char *to, const char *where) {
  for (const char *at = from; at < to; ++at)
    if (*(const unsigned char *)at != CANARY) {
      fprintf(stderr, "guard pages: a write %s a tensor\n", where);
      abort();
    }
}

void free(void *pointer) {
  char *at = pointer;
  if (!arena || at < arena || at >= arena + ARENA_PAGES * PAGE) {
    __libc_free(pointer);
    return;
  }
  uint64_t first = (at - arena) / PAGE;
  /* An alignment of more than a page leaves pages before the block. */
  while (!blocks[first].pages) --first;
  struct block *block = &blocks[first];
  char *base = arena + first * PAGE;
  if (base + block->offset != at) abort();
  require_canary(base, at, "before");
  require_canary(at + block->bytes, base + block->pages * PAGE, "behind");
  mprotect(base, block->pages * PAGE, PROT_NONE);
  madvise(base, block->pages * PAGE, MADV_DONTNEED);
}

/* TVM's own takes memory for the temporary arrays of a kernel from a pool. */
void *TVMBackendAllocWorkspace(int device, int index, uint64_t bytes, int code, int bits) {
  return guarded(LEAST_ALIGNMENT, bytes);
}

int TVMBackendFreeWorkspace(int device, int index, void *pointer) {
  free(pointer);
  return 0;
}
