/* Tuned conv2d forward kernels behind a C interface: y = epilogue(conv2d(x, w)).
 *
 * Letters are cuDNN's: input x [N, C, H, W], filters w [K, C/groups, R, S], output y [N, K, P, Q], bias [K]. Layout
 * NHWC stores x [N, H, W, C], w [K, R, S, C/groups], y [N, P, Q, K]. All are dense device memory of the problem's
 * dtype.
 *
 * The usual sequence, once the calling thread has a CUDA context (after cudaSetDevice, or any runtime call):
 *
 *     conv2d_handle *handle;
 *     conv2d_prepare(&problem, w, bias, stream, &handle);
 *     conv2d_handle_workspace_size(handle, n, &bytes);
 *     conv2d_run(handle, n, x, y, workspace, bytes, stream);      as often as wanted, for any n
 *     conv2d_release(handle);
 *
 * Every function returns a status; none prints, exits or throws. All may be called from several threads at once. Work
 * is enqueued on the stream that is given (NULL: the default stream), so that an error of a kernel itself shows, as
 * with any kernel, when the stream is synchronized.
 */
#ifndef AUTOTUNE_CONV2D_H
#define AUTOTUNE_CONV2D_H

#include <stdint.h>

#define CONV2D_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface: a library with another one must not be called through this header. */
#define CONV2D_ABI_VERSION 1

/* cudaStream_t of the runtime and CUstream of the driver are this type. */
typedef struct CUstream_st *conv2d_stream;

typedef enum conv2d_status {
    CONV2D_OK = 0,
    CONV2D_BAD_PROBLEM = 1,     /* no convolution: a size out of range, a filter larger than its padded input, ... */
    CONV2D_NULL_POINTER = 2,    /* an argument that must point to something is NULL */
    CONV2D_MISALIGNED = 3,      /* a device pointer is not a multiple of CONV2D_ALIGNMENT */
    CONV2D_SHORT_WORKSPACE = 4, /* fewer bytes of workspace than the size query says */
    CONV2D_UNSUPPORTED = 5,     /* the library has no kernel for this problem, or none for an n this large */
    CONV2D_WRONG_DEVICE = 6,    /* it has one, but not for this device: its architecture, its shared memory */
    CONV2D_NO_CONTEXT = 7,      /* no NVIDIA driver, or the calling thread has no CUDA context */
    CONV2D_OUT_OF_MEMORY = 8,   /* of the host or the device */
    CONV2D_CUDA_ERROR = 9       /* the driver refused something; conv2d_last_error says what */
} conv2d_status;

typedef enum conv2d_dtype { CONV2D_F32 = 0, CONV2D_F16 = 1, CONV2D_BF16 = 2 } conv2d_dtype;
typedef enum conv2d_layout { CONV2D_NCHW = 0, CONV2D_NHWC = 1 } conv2d_layout;
typedef enum conv2d_epilogue { CONV2D_NONE = 0, CONV2D_BIAS = 1, CONV2D_BIAS_RELU = 2 } conv2d_epilogue;

/* Bytes of which x, w, bias, y and workspace must be multiples; cudaMalloc's memory is a multiple of 256. */
#define CONV2D_ALIGNMENT 16

typedef struct conv2d_problem {
    int32_t n;          /* images, at least 1 */
    int32_t c, h, w;    /* channels, height and width of x */
    int32_t k, r, s;    /* filters (channels of y), their height and width */
    int32_t stride_h, stride_w;
    int32_t pad_h, pad_w;
    int32_t dilation_h, dilation_w;
    int32_t groups;
    int32_t dtype;      /* conv2d_dtype */
    int32_t layout;     /* conv2d_layout */
    int32_t epilogue;   /* conv2d_epilogue */
} conv2d_problem;

/* Filters made ready for one problem's shape on one device. It has a copy of the filters and the bias, and the
 * kernel's code with its constant memory for itself, so any number of handles may run at once, on any streams. One
 * handle may run on several streams at once, each with a workspace of its own. */
typedef struct conv2d_handle conv2d_handle;

/* Bytes of workspace that conv2d_forward needs for a problem on the current context's device; without a context, on the
 * device that its kernel was tuned on. 0 is common. */
CONV2D_API conv2d_status conv2d_workspace_size(const conv2d_problem *problem, uint64_t *bytes);

/* Choose the kernel for `problem` at its n on the current context's device, load it and copy the filters and the bias
 * (NULL without epilogue) into it. Once the stream has reached this point, w and bias may be changed or freed, and the
 * handle may be run on other streams. */
CONV2D_API conv2d_status conv2d_prepare(const conv2d_problem *problem, const void *w, const void *bias,
                                        conv2d_stream stream, conv2d_handle **handle);

/* Bytes of workspace that conv2d_run needs for n images. */
CONV2D_API conv2d_status conv2d_handle_workspace_size(const conv2d_handle *handle, int32_t n, uint64_t *bytes);

/* Enqueue one forward pass of n images, which may be any number. `workspace` may be NULL where none is needed.
 * Nothing is allocated and nothing waits, so a pass may be captured into a graph. The handle's context need not be
 * current. */
CONV2D_API conv2d_status conv2d_run(const conv2d_handle *handle, int32_t n, const void *x, void *y, void *workspace,
                                    uint64_t workspace_bytes, conv2d_stream stream);

/* The name of the kernel in a handle: study.layer as it was tuned. It lives as long as the library. */
CONV2D_API const char *conv2d_handle_kernel_name(const conv2d_handle *handle);

/* Wait for the handle's device to be done with it and free it; nothing may be called with it any more. NULL is fine. */
CONV2D_API conv2d_status conv2d_release(conv2d_handle *handle);

/* One forward pass with filters that are used once: prepare and run. The kernel's code stays loaded in the context,
 * until conv2d_unload. Passes of one kernel whose filters must be prepared (in constant memory, or packed) wait for
 * each other. */
CONV2D_API conv2d_status conv2d_forward(const conv2d_problem *problem, const void *x, const void *w, const void *bias,
                                        void *y, void *workspace, uint64_t workspace_bytes, conv2d_stream stream);

/* Free what conv2d_forward keeps loaded, in every context; to be called before a context that it was used in is
 * destroyed (cudaDeviceReset), and while no other thread is in conv2d_forward. */
CONV2D_API conv2d_status conv2d_unload(void);

/* The name of the kernel that serves a problem on the device of conv2d_workspace_size: study.layer as it was tuned. NULL
 * where the library has none for it. It lives as long as the library. */
CONV2D_API const char *conv2d_kernel_name(const conv2d_problem *problem);

/* What a status means, in English. */
CONV2D_API const char *conv2d_status_text(conv2d_status status);

/* What more there is to say of the calling thread's latest call than its status: the driver's error, or the rule that a
 * kernel's device or number of images breaks. Empty where there is nothing; it lives until the thread's next call. */
CONV2D_API const char *conv2d_last_error(void);

/* CONV2D_ABI_VERSION that the library was built with. */
CONV2D_API int32_t conv2d_abi_version(void);

/* What wrote the library, such as "autotune 0.1.0". */
CONV2D_API const char *conv2d_library_version(void);

/* A kernel of the library and what it was tuned for. */
typedef struct conv2d_kernel {
    const char *name;           /* study.layer */
    conv2d_problem problem;     /* what it was tuned on; it serves other n too */
    const char *accuracy;       /* fp32, fp32-3xtf32, tf32, fp16, fp16-acc16, bf16 */
    int32_t deterministic;      /* 1: two runs on the same data give the same bits */
    const char *device;         /* name of the device it was tuned on */
    double median_us;           /* time of a pass there, microseconds */
} conv2d_kernel;

/* The kernels of the library: `index` from 0 to below conv2d_kernel_count(). */
CONV2D_API int32_t conv2d_kernel_count(void);
CONV2D_API conv2d_status conv2d_kernel_at(int32_t index, conv2d_kernel *kernel);

#ifdef __cplusplus
}
#endif

#endif
