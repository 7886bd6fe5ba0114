"""Python code that builds a PyTorch model -> an archive of `torch.export`, on the meta device: no weights, no GPU."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from autotune.errors import ModelError
from autotune.importing.network import plain
from autotune.toml_table import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor, nn

_WITHOUT = ("weights", "weights_backbone")
"""Arguments of torchvision's builders for weights to download; None: none."""
_VALUES = (
    "its control flow depends on computed values, such as a detector's boxes, and none of its parts can be exported"
)


def archives_of_source(
    source: str, inputs: Sequence[tuple[int, ...]], stage: Callable[[str], None]
) -> Mapping[str, io.BytesIO]:
    """The archive of the model that PACKAGE.MODULE:NAME or FILE.py:NAME builds, for inputs of these sizes, as ''.

    If its control flow depends on computed values, such as a detector's boxes: the archives of the parts that `convert`
    captures, by their paths. NAME is a function or class, called without arguments, or a model. timm's models go by
    their names there. The code runs. Raises ModelError where PyTorch, the module or the name is missing, or the model
    cannot be built or exported. `stage` is called with each step, because a step takes seconds.
    """
    stage(f"{source}: importing PyTorch and the code")
    try:
        import torch

        from autotune.autotune_runtime.torch_capture import depends_on_values
    except ImportError:
        raise ModelError(f"{source}: needs PyTorch; install it (pip install torch), or give an ONNX file") from None
    if not inputs:
        raise ModelError(f"{source}: the sizes of its input are needed, such as --input 1x3x224x224")
    with _apart():  # standard output may be the study's
        build = _builder(source)
        failed = ""
        # the second for models that look at values while they are built or traced
        for device, in_parts in (("meta", False), ("cpu", False), ("cpu", True)):
            if in_parts is not (failed == _VALUES):
                continue
            try:
                with torch.device(device), torch.no_grad():
                    stage(f"{source}: building the model")
                    module = build().eval().to(device)
                    stage(f"{source}: {'running it, and ' if in_parts else ''}exporting it by torch.export")
                    found = archives_of_parts(module, inputs) if in_parts else {"": archive_of(module, inputs)}
                    if found:
                        return found
            except Exception as error:  # noqa: BLE001 - the model's own code runs, which may raise anything
                text = f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
                failed = _VALUES if depends_on_values(error) else plain(text, 300)
    raise ModelError(f"{source}: cannot be built and exported: {failed}")


def archive_of(module: nn.Module, inputs: Sequence[tuple[int, ...]]) -> io.BytesIO:
    """The archive of a model in evaluation mode, for inputs of these sizes, of its parameters' type and device."""
    from autotune.autotune_runtime.torch_attention import fast_attention

    with fast_attention(module):
        return _exported(module, _noise(module, inputs))


def archives_of_parts(module: nn.Module, inputs: Sequence[tuple[int, ...]]) -> Mapping[str, io.BytesIO]:
    """The archives of the parts that `convert` captures of a model in evaluation mode, by their paths."""
    from autotune.autotune_runtime.torch_attention import fast_attention
    from autotune.autotune_runtime.torch_capture import capture

    with fast_attention(module):
        _, parts = capture(module, _noise(module, inputs))
        return {part.path: _exported(part.graph, part.arguments) for part in parts}


def _noise(module: nn.Module, inputs: Sequence[tuple[int, ...]]) -> tuple[Tensor, ...]:
    import torch

    like = next((each for each in module.parameters() if each.is_floating_point()), torch.empty(0))
    return tuple(torch.rand(each, dtype=like.dtype, device=like.device) for each in inputs)


def _exported(module: nn.Module, arguments: tuple[object, ...]) -> io.BytesIO:
    import torch

    archive = io.BytesIO()
    with contextlib.redirect_stderr(io.StringIO()):  # if it fails, the whole graph until then
        torch.export.save(torch.export.export(module, arguments), archive)
    return archive


def _builder(source: str) -> Callable[[], nn.Module]:
    """The function or class that builds the model."""
    from torch import nn

    where, _, name = source.rpartition(":")
    module = _module(source, where)
    found = module
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        create = getattr(module, "create_model", None)
        if create is None:
            raise ModelError(f"{source}: {where} has no {name}{did_you_mean(name, dir(module))}") from None
        return lambda: create(name)
    if isinstance(found, nn.Module):
        model = found
        return lambda: copy.deepcopy(model)
    if not callable(found):
        raise ModelError(f"{source}: is a {type(found).__name__}, not a model nor a function that builds one")
    keywords = {each: None for each in _WITHOUT if each in _parameters(found)}

    def build() -> nn.Module:
        made = found(**keywords)
        if not isinstance(made, nn.Module):
            raise TypeError(f"it gives a {type(made).__name__}, not a torch.nn.Module")
        return made

    return build


def _parameters(function: Callable[..., object]) -> Sequence[str]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # for functions written in C
        return ()


def _module(source: str, where: str) -> ModuleType:
    """The module of a source, by its file or by its import path; the current folder comes last."""
    path = Path(where)
    try:
        if where.endswith(".py"):
            if not path.is_file():
                raise ModelError(f"{source}: there is no file {where}")
            sys.path.insert(0, str(path.parent.resolve()))
            return _run(path)
        sys.path.append(str(Path.cwd()))
        return importlib.import_module(where)
    except ModelError:
        raise
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{source}: no module named {error.name}; install it, or give a file as my_module.py:build"
        ) from None
    except Exception as error:  # noqa: BLE001 - the module's own code runs, which may raise anything
        said = plain(f"{type(error).__name__}: {error}", 300)
        raise ModelError(f"{source}: {where} cannot be imported: {said}") from None


def _run(path: Path) -> ModuleType:
    """A module of a file, run anew."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where a module's dataclasses look for it
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Send the model's output to standard error, silence PyTorch, and restore the import paths."""
    paths, disabled = sys.path[:], logging.root.manager.disable
    try:
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.disable()
            yield
    finally:
        logging.disable(disabled)
        sys.path[:] = paths
