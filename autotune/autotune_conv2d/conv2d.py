"""A convolution with filters that were prepared once, on arrays of PyCUDA, CuPy or PyTorch."""

from __future__ import annotations

from . import arrays
from .library import Library, Problem


class Conv2d:
    """y = epilogue(conv2d(x, w), z) for one problem's shape and any number of images; z: a residual, if any.

    The filters are copied when it is made, so later changes of w and bias are not seen. It belongs to the device that
    w lies on (PyCUDA: the current one); any thread may call it, on any stream, several at once.
    """

    def __init__(
        self,
        problem: Problem,
        w: object,
        bias: object = None,
        *,
        library: Library | None = None,
        stream: object = None,
    ) -> None:
        """Prepare filters w [K, C/groups, R, S] (nhwc: [K, R, S, C/groups]) and bias [K] on their device.

        The kernel is the one that is best for problem.n images. `library` None: the one that `find_library` finds.
        `stream` is where w and bias are ready and the copies are made: other streams must wait for it before the first
        pass. Raises Conv2dError in the library's words, TypeError and ValueError for arrays that do not fit.
        """
        self.problem = problem
        w_view = arrays.view(w, "w", problem.dtype)
        _check_shape("w", w_view.shape, problem.w_shape)
        self._device = w_view.device
        addresses = {"w": w_view.address}
        if problem.epilogue != "none":
            bias_view = arrays.view(bias, "bias", problem.dtype)
            _check_shape("bias", bias_view.shape, (problem.k,))
            self._check_device("bias", bias_view)
            addresses["bias"] = bias_view.address
        elif bias is not None:
            raise ValueError("bias: the problem has none; give an epilogue with one")
        on = arrays.stream_address(stream, w)
        with arrays.on_device_of(w):
            self.handle = (library or Library()).prepare(problem, addresses, on)

    @property
    def kernel_name(self) -> str:
        """study.layer of the kernel that runs."""
        return self.handle.kernel_name

    def workspace_bytes(self, n: int) -> int:
        """Bytes of workspace of a pass over n images; 0 is common."""
        return self.handle.workspace_bytes(n)

    def __call__(
        self, x: object, out: object = None, *, z: object = None, workspace: object = None, stream: object = None
    ) -> object:
        """Enqueue a pass over x [N, C, H, W] (nhwc: [N, H, W, C]) for any N; returns y.

        z, of y's shape, is what an epilogue with `add` adds before its activation.

        `out` None: a new array of x's kind; so is a workspace where one is needed. `stream` None: the one that is
        current for x (CuPy, PyTorch), else the default stream; x, out and workspace must be ready there.
        """
        x_view = arrays.view(x, "x", self.problem.dtype)
        n = x_view.shape[0] if x_view.shape else 0
        _check_shape("x", x_view.shape, self.problem.x_shape(n))
        self._check_device("x", x_view)
        on = arrays.stream_address(stream, x)
        needed = self.workspace_bytes(n) if n else 0
        if needed and workspace is None:
            workspace = arrays.workspace_like(x, needed, on)
        if out is None:
            out = arrays.empty_like(x, self.problem.y_shape(n), on)
        y_view = arrays.view(out, "out", self.problem.dtype)
        _check_shape("out", y_view.shape, self.problem.y_shape(n))
        self._check_device("out", y_view)
        addresses = {"x": x_view.address, "y": y_view.address}
        if self.problem.has_residual:
            z_view = arrays.view(z, "z", self.problem.dtype)
            _check_shape("z", z_view.shape, self.problem.y_shape(n))
            self._check_device("z", z_view)
            addresses["z"] = z_view.address
        elif z is not None:
            raise ValueError("z: the problem has no residual; give an epilogue that adds one, such as 'bias_add'")
        given = (0, 0)
        if workspace is not None:
            workspace_view = arrays.view(workspace, "workspace")
            self._check_device("workspace", workspace_view)
            given = (workspace_view.address, workspace_view.size_bytes)
        if n:
            self.handle.run(n, addresses, *given, stream=on)
        return out

    def _check_device(self, what: str, view: arrays.View) -> None:
        if None not in (view.device, self._device) and view.device != self._device:
            raise ValueError(f"{what}: lies on device {view.device}, the filters on device {self._device}")


def _check_shape(what: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ValueError(f"{what}: has shape {shape}, expected {expected}")
