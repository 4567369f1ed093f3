/* Allocates managed memory and page-locked memory for torch's memory pools.
 *
 * torch calls these functions from any thread, with its allocator locked. They are written in C because a Python
 * function would wait for the interpreter, while a thread that holds the interpreter may wait for the allocator.
 *
 * CUDA's headers are not needed: the addresses of its functions come from Python, which has found its library.
 */
#include <stddef.h>

enum { RELAXED_CAPTURE = 2, ATTACH_GLOBAL = 1, HOST_PORTABLE = 1, HOST_MAPPED = 2 }; /* values of CUDA's constants */

typedef int (*Allocate)(void **address, size_t size, unsigned flags);
typedef int (*Free)(void *address);

/* Functions of CUDA's run-time API. Each returns 0 for success. */
struct Runtime {
  Allocate malloc_managed, host_alloc;
  Free free_managed, free_host;
  int (*memory_info)(size_t *free_bytes, size_t *total_bytes);
  int (*exchange_capture_mode)(int *mode);
  int (*take_last_error)(void);
};

static struct Runtime runtime;

/* Sets CUDA's functions. Called before anything is allocated. */
void split_infer_use_runtime(const struct Runtime *functions) { runtime = *functions; }

/* Returns the address of new memory, or NULL. A thread that records a graph may allocate too. */
static void *allocate(Allocate function, size_t size, unsigned flags) {
  void *address = NULL;
  int mode = RELAXED_CAPTURE;
  runtime.exchange_capture_mode(&mode);
  if (function(&address, size, flags) != 0) {
    runtime.take_last_error(); /* torch would raise it at its next call */
    address = NULL;
  }
  runtime.exchange_capture_mode(&mode);
  return address;
}

static void release(Free function, void *address) {
  int mode = RELAXED_CAPTURE;
  runtime.exchange_capture_mode(&mode);
  function(address); /* an error means that the context is gone, with all that it held */
  runtime.exchange_capture_mode(&mode);
}

/* Returns NULL if the GPU has less memory free: more managed memory than it has can hang it. */
void *split_infer_allocate_managed(size_t size, int device, void *stream) {
  size_t free_bytes = 0, total_bytes = 0;
  (void)device, (void)stream;
  if (runtime.memory_info(&free_bytes, &total_bytes) != 0 || size > free_bytes) {
    runtime.take_last_error();
    return NULL;
  }
  return allocate(runtime.malloc_managed, size, ATTACH_GLOBAL);
}

void split_infer_free_managed(void *address, size_t size, int device, void *stream) {
  (void)size, (void)device, (void)stream;
  release(runtime.free_managed, address);
}

void *split_infer_allocate_pinned(size_t size, int device, void *stream) {
  (void)device, (void)stream;
  return allocate(runtime.host_alloc, size, HOST_PORTABLE | HOST_MAPPED);
}

void split_infer_free_pinned(void *address, size_t size, int device, void *stream) {
  (void)size, (void)device, (void)stream;
  release(runtime.free_host, address);
}
