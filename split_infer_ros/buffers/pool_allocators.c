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
  int (*set_bytes)(void *address, int value, size_t size);
  int (*wait_for_stream)(void *stream);
  const volatile long long *managed_elsewhere; /* bytes of managed memory that this library does not allocate */
};

static struct Runtime runtime;
static long long untouched_bytes; /* of managed memory that this library is allocating */

/* Sets CUDA's functions. Called before anything is allocated. */
void split_infer_use_runtime(const struct Runtime *functions) { runtime = *functions; }

/* Returns how many bytes of managed memory this library is allocating. */
long long split_infer_untouched_bytes(void) { return __atomic_load_n(&untouched_bytes, __ATOMIC_SEQ_CST); }

static void release(Free function, void *address) {
  int mode = RELAXED_CAPTURE;
  runtime.exchange_capture_mode(&mode);
  function(address); /* an error means that the context is gone, with all that it held */
  runtime.exchange_capture_mode(&mode);
}

/* Returns whether pages of managed memory come only when they are touched. */
static int pages_come_late(int device) {
  int value = 0;
  return runtime.device_attribute(&value, CONCURRENT_MANAGED_ACCESS, device) == 0 && value;
}

/* Returns whether the GPU has room for new managed memory, which is counted already. More than it has can hang it.
 *
 * Where pages come late, memory that has none yet does not lower the free memory. So it counts as well. Only the CPU
 * takes pages away again, and it never touches the memory of this library.
 */
static int has_room(size_t size, int device) {
  size_t free_bytes = 0, total_bytes = 0;
  long long needed = (long long)size;
  if (pages_come_late(device))
    needed = split_infer_untouched_bytes() + *runtime.managed_elsewhere;
  return runtime.memory_info(&free_bytes, &total_bytes) == 0 && needed <= (long long)free_bytes;
}

/* Has the GPU take all pages of new memory; returns whether it did. Nobody records the default stream, NULL. */
static int take_pages(void *address, size_t size) {
  return runtime.set_bytes(address, 0, size) == 0 && runtime.wait_for_stream(NULL) == 0;
}

/* Returns NULL if the GPU has no room. From then on, the free memory of the GPU is less by the memory's size. */
void *split_infer_allocate_managed(size_t size, int device, void *stream) {
  void *address = NULL;
  int mode = RELAXED_CAPTURE;
  (void)stream;
  __atomic_add_fetch(&untouched_bytes, (long long)size, __ATOMIC_SEQ_CST);
  runtime.exchange_capture_mode(&mode);
  if (has_room(size, device) && runtime.malloc_managed(&address, size, ATTACH_GLOBAL) == 0) {
    if (pages_come_late(device) && !take_pages(address, size)) {
      runtime.free_managed(address);
      address = NULL;
    }
  }
  if (address == NULL)
    runtime.take_last_error(); /* torch would raise it at its next call */
  runtime.exchange_capture_mode(&mode);
  __atomic_sub_fetch(&untouched_bytes, (long long)size, __ATOMIC_SEQ_CST);
  return address;
}

void split_infer_free_managed(void *address, size_t size, int device, void *stream) {
  (void)size, (void)device, (void)stream;
  release(runtime.free_managed, address);
}

/* Returns NULL if that much memory cannot be page-locked. */
void *split_infer_allocate_pinned(size_t size, int device, void *stream) {
  void *address = NULL;
  int mode = RELAXED_CAPTURE;
  (void)device, (void)stream;
  runtime.exchange_capture_mode(&mode);
  if (runtime.host_alloc(&address, size, HOST_PORTABLE | HOST_MAPPED) != 0) {
    runtime.take_last_error();
    address = NULL;
  }
  runtime.exchange_capture_mode(&mode);
  return address;
}

void split_infer_free_pinned(void *address, size_t size, int device, void *stream) {
  (void)size, (void)device, (void)stream;
  release(runtime.free_host, address);
}
