/* NVIDIA's driver. */
#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>
#include <string.h>

#define DRIVER "libcuda.so.1"
enum { OUT_OF_MEMORY = 2 };

bool driver_open(Driver *driver) {
  static const char *const NAMES[] = {
#define NAME(name, arguments) #name,
      DRIVER_FUNCTIONS(NAME)
#undef NAME
  };
  _Static_assert(sizeof *driver == sizeof NAMES, "a pointer for each name");
  /* It stays in the process, as it does with every program that uses a GPU. */
  void *library = dlopen(DRIVER, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) return fail("%s: cannot be loaded (%s); install NVIDIA's driver", DRIVER, dlerror());
  bool is_whole = true;
  for (size_t i = 0; is_whole && i < sizeof NAMES / sizeof *NAMES; i++) {
    void *function = dlsym(library, NAMES[i]);
    memcpy((char *)driver + i * sizeof function, &function, sizeof function);
    is_whole = function || fail("%s: lacks %s; install a driver for CUDA 12.3 or newer", DRIVER, NAMES[i]);
  }
  dlclose(library);
  return is_whole;
}

bool driver_succeeded(const Driver *driver, int code, const char *call) {
  const char *name = NULL;
  if (!code) return true;
  driver->cuGetErrorName(code, &name);
  if (code == OUT_OF_MEMORY)
    return fail("GPU: it is out of memory (%s: %s); free memory there, or compile the model for a smaller batch", call,
                name ? name : "2");
  return fail("GPU: %s failed (%s); see what nvidia-smi says", call, name ? name : "unknown");
}
