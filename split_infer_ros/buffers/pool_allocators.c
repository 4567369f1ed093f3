/* Allocates managed memory and page-locked memory for torch's memory pools.
 *
 * torch calls these functions from any thread, with its allocator locked. They are written in C because a Python
 * function would wait for the interpreter, while a thread that holds the interpreter may wait for the allocator.
 *
 * CUDA's headers are not needed: the addresses of its functions come from Python, which has found its library.
 */
#include <stddef.h>

/* Values of CUDA's constants. */
enum { RELAXED_CAPTURE = 2, ATTACH_GLOBAL = 1, HOST_PORTABLE = 1, HOST_MAPPED = 2, CONCURRENT_MANAGED_ACCESS = 89 };

typedef int (*Allocate)(void **address, size_t size, unsigned flags);
typedef int (*Free)(void *address);

/* Functions of CUDA's run-time API, each of which returns 0 for success, and a count. */
struct Runtime {
  Allocate malloc_managed, host_alloc;
  Free free_managed, free_host;
  int (*memory_info)(size_t *free_bytes, size_t *total_bytes);
  int (*exchange_capture_mode)(int *mode);
  int (*take_last_error)(void);
  int (*device_attribute)(int *value, int attribute, int device);
  const volatile long long *managed_elsewhere; /* bytes of managed memory that this library has not allocated */
};

static struct Runtime runtime;
static long long managed_bytes; /* that this library has allocated */

/* Sets CUDA's functions. Called before anything is allocated. */
void split_infer_use_runtime(const struct Runtime *functions) { runtime = *functions; }

/* Returns how many bytes of managed memory this library has allocated. */
long long split_infer_managed_bytes(void) { return __atomic_load_n(&managed_bytes, __ATOMIC_SEQ_CST); }

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

/* Returns whether the GPU has room for new managed memory, which is counted already. More than it has can hang it.
 *
 * Where pages come only when they are touched, CUDA does not take them from the free memory before. So all managed
 * memory of the process must fit.
 */
static int has_room(size_t size, int device) {
  size_t free_bytes = 0, total_bytes = 0;
  long long needed = (long long)size;
  int pages_come_late = 0;
  if (runtime.device_attribute(&pages_come_late, CONCURRENT_MANAGED_ACCESS, device) == 0 && pages_come_late)
    needed = split_infer_managed_bytes() + *runtime.managed_elsewhere;
  return runtime.memory_info(&free_bytes, &total_bytes) == 0 && needed <= (long long)free_bytes;
}

/* Returns NULL if the GPU has no room. */
void *split_infer_allocate_managed(size_t size, int device, void *stream) {
  void *address = NULL;
  int mode = RELAXED_CAPTURE, fits = 0;
  (void)stream;
  __atomic_add_fetch(&managed_bytes, (long long)size, __ATOMIC_SEQ_CST);
  runtime.exchange_capture_mode(&mode);
  fits = has_room(size, device);
  runtime.exchange_capture_mode(&mode);
  if (fits)
    address = allocate(runtime.malloc_managed, size, ATTACH_GLOBAL);
  else
    runtime.take_last_error();
  if (address == NULL)
    __atomic_sub_fetch(&managed_bytes, (long long)size, __ATOMIC_SEQ_CST);
  return address;
}

void split_infer_free_managed(void *address, size_t size, int device, void *stream) {
  (void)device, (void)stream;
  release(runtime.free_managed, address);
  __atomic_sub_fetch(&managed_bytes, (long long)size, __ATOMIC_SEQ_CST);
}

void *split_infer_allocate_pinned(size_t size, int device, void *stream) {
  (void)device, (void)stream;
  return allocate(runtime.host_alloc, size, HOST_PORTABLE | HOST_MAPPED);
}

void split_infer_free_pinned(void *address, size_t size, int device, void *stream) {
  (void)size, (void)device, (void)stream;
  release(runtime.free_host, address);
}
