"""An exported library on the CPU: it is built from its files and right, and refused once one of its parts is wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.api.device_names import binary_cache
from autotune.errors import StoreError, TemplateError, ToolchainError
from autotune.exporting import Exported, export_library
from autotune.exporting.build import Built, clean, self_test
from autotune.exporting.kernel import Origin
from autotune.exporting.proof import ProofFailed, library_timing, prove
from autotune.family.template_files import load_template
from autotune.operation.registry import CONV2D, operation
from autotune.problem import Conv2dProblem
from autotune.trial import Timing
from autotune.workers.worker import FinalsTimings
from tests.compiled import built_for_host
from tests.exports import CHUNKED, CONSTANT, H200, KERNELS, MAPPED, PACKED, TIMING, chosen, contents, kernel
from tests.long_run import every
from tests.templates.shipped_families import family
from tests.unit.permissions import read_only

pytestmark = pytest.mark.cxx

WRONG_DEVICE = "the kernel for this problem does not run on this device"


def test_library_is_right_and_refuses_wrong_calls(built: Built) -> None:
    passed, words = self_test(built)
    assert passed, words
    lines = words.splitlines()
    for line, name in zip(
        lines[1:], ("constant", "packed", "chunked", "larger", "mapped", "rounded", "added"), strict=False
    ):
        assert re.match(rf"tested\.{name}: right at n = 3 and 1(, also at .*)?; largest error 0\.", line), line
        assert line.endswith("of the bound, integers exact")
    assert lines[-2:] == ["invalid calls: all rejected", "self-test passed"]


def test_kernels_that_wait_themselves_are_launched_early_where_that_is_asked_for(
    built: Built, exported: Exported
) -> None:
    """The host's driver refuses to launch others this way."""
    table = (exported.folder / "kernels.cpp").read_text()
    waiting = re.findall(r"image_tuned_tested_(\w+?), true,", table)
    assert {name.partition("_")[0] for name in waiting} == {"mapped", "rounded"}
    early = dataclasses.replace(built, environment={**built.environment, "AUTOTUNE_DEPENDENT_LAUNCH": "1"})
    passed, words = self_test(early, kernels=("tested.constant", "tested.mapped", "tested.rounded"))
    assert passed, words


def test_device_that_no_kernel_is_for_fails_the_self_test(built: Built) -> None:
    older = dataclasses.replace(built, environment={**built.environment, "AUTOTUNE_HOST_ARCH": "70"})
    passed, said = self_test(older)
    assert not passed
    assert said.splitlines()[-1] == "no kernel of this library is for this device"
    why = "direct requires: compute capability 7.5 or newer"
    assert f"tested.constant: not tested: {WRONG_DEVICE} (tested.constant: {why})" in said


@pytest.mark.parametrize(
    ("variable", "value", "kernel", "why"),
    [
        ("AUTOTUNE_HOST_ARCH", "75", "tested.packed", "mma_strip requires: compute capability 8.0 or newer"),
        ("AUTOTUNE_HOST_SMEM_BYTES", "16", "tested.packed", "a block needs more shared memory than the device has"),
    ],
)
def test_kernel_that_is_not_for_a_device_is_left_out_there(
    variable: str, value: str, kernel: str, why: str, built: Built
) -> None:
    other = dataclasses.replace(built, environment={**built.environment, variable: value})
    passed, said = self_test(other, kernels=("tested.constant", kernel))
    assert passed, said
    assert f"{kernel}: not tested: {WRONG_DEVICE} ({kernel}: {why})" in said.splitlines()
    assert "tested.constant: right at n = 3 and 1" in said


def test_benchmark_times_each_kernel_that_is_for_the_device(built: Built, exported: Exported, cxx: str) -> None:
    program = built.folder / "benchmark"
    libraries = (f"-L{built.folder}", "-lconv2d", "-ldl")
    source = str(exported.folder / "benchmark.cpp")
    subprocess.run([cxx, "-std=c++17", "-o", str(program), source, *libraries], check=True)
    older = {**built.environment, "AUTOTUNE_HOST_ARCH": "75"}
    done = subprocess.run([str(program), "2"], env=older, capture_output=True, text=True, check=True)
    assert [line.partition(" (")[0] for line in done.stdout.splitlines() if line.startswith("tested.")] == [
        "tested.constant at n = 2",
        f"tested.packed at n = 2: not timed: {WRONG_DEVICE}",
        "tested.chunked at n = 2",
        "tested.larger at n = 2",
        f"tested.mapped at n = 2: not timed: {WRONG_DEVICE}",
        f"tested.rounded at n = 2: not timed: {WRONG_DEVICE}",
        "tested.added at n = 2",
    ]


@pytest.mark.parametrize("sanitizer", every(2, ["address,undefined", "thread"]))
def test_library_has_no_leak_and_no_race(
    sanitizer: str, built: Built, exported: Exported, cxx: str, tmp_path: Path
) -> None:
    for path in built.folder.iterdir():
        if path.suffix in (".fatbin", ".so", ".1"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "libconv2d.so").unlink()
    flags = [cxx, "-std=c++17", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]  # most faults show without it
    (tmp_path / "empty.cpp").write_text("int main() {}")
    if subprocess.run([*flags, "empty.cpp"], cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip(f"the compiler has no -fsanitize={sanitizer}")
    sources = [str(exported.folder / name) for name in ("selftest.cpp", "conv2d.cpp", "kernels.cpp")]
    subprocess.run([*flags, *sources, "-o", "selftest", "-Wa,-I,.", "-ldl", "-lpthread"], cwd=tmp_path, check=True)
    environment = {**built.environment, "LD_LIBRARY_PATH": str(tmp_path), "AUTOTUNE_HOST_DEVICES": "2"}
    passed, said = self_test(Built(tmp_path, tmp_path / "libconv2d.so", environment))
    assert passed, said


def test_handles_of_two_devices(built: Built) -> None:
    two = dataclasses.replace(built, environment={**built.environment, "AUTOTUNE_HOST_DEVICES": "2"})
    passed, words = self_test(two, kernels=("tested.constant",))
    assert passed, words
    assert words.splitlines()[-2:] == ["two devices: right", "self-test passed"]


def test_other_device_that_the_library_is_not_for(built: Built) -> None:
    other = {"AUTOTUNE_HOST_DEVICES": "2", "AUTOTUNE_HOST_OTHERS_ARCH": "70"}
    elsewhere = dataclasses.replace(built, environment={**built.environment, **other})
    passed, words = self_test(elsewhere, kernels=("tested.constant",))
    assert passed, words
    assert "two devices: not tested, tested.constant does not support the other one" in words.splitlines()


def test_a_driver_that_does_not_start_is_a_status(built: Built) -> None:
    passed, said = self_test(dataclasses.replace(built, environment={"PATH": ""}))
    assert (passed, said) == (False, "the NVIDIA driver on this machine is too old or does not start")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("echo a line; kill -SEGV $$", "a line\nthe self-test was killed by SIGSEGV"),
        ("exit 3", "the self-test ended with status 3"),
        ("exec sleep 60", "the self-test did not end within 0.5 s"),
    ],
)
def test_self_test_that_breaks_off_has_failed(lines: str, words: str, tmp_path: Path) -> None:
    program = tmp_path / "selftest"
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    assert self_test(Built(tmp_path, tmp_path / "libconv2d.so", {"PATH": os.defpath}), limit_s=0.5) == (False, words)


def test_environment_of_a_proof_is_the_machines() -> None:
    given = {"PATH": "/bin", "PYTHONPATH": "/mine", "CXXFLAGS": "-Werror", "CUDA_VISIBLE_DEVICES": "1"}
    assert clean(given) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "LC_ALL": "C"}


def test_same_kernels_give_the_same_bytes(exported: Exported, tmp_path: Path) -> None:
    again = export_library(KERNELS, tmp_path / "elsewhere", ())
    assert contents(again.folder) == contents(exported.folder)
    for name, content in contents(exported.folder).items():
        assert str(exported.folder).encode() not in content, name


def test_provenance_says_where_each_kernel_comes_from(exported: Exported) -> None:
    provenance = json.loads((exported.folder / "provenance.json").read_text())
    assert provenance["archs"] == [90]
    first = provenance["kernels"][0]
    assert (first["name"], first["file"], first["template"]) == ("tested.constant", "tested.constant.cu", "direct")
    assert first["problem"] == CONSTANT.problem.names()
    assert first["config"] == CONSTANT.source.config.params
    assert first["source_hash"] == CONSTANT.source.hash
    assert set(provenance["sha256"]) == set(contents(exported.folder)) - {"provenance.json"}


def test_shape_tuned_at_several_n_is_dispatched_by_thresholds(exported: Exported) -> None:
    text = (exported.folder / "dispatch.h").read_text()
    assert "constexpr int64_t most_n_of_tuned_tested_chunked = 94;" in text, "the geometric mean of 30 and 300"
    few = text.index(
        "if (units(problem) <= most_n_of_tuned_tested_chunked && serves(tuned_tested_chunked)) return "
        "&tuned_tested_chunked;"
    )
    assert few < text.index("if (serves(tuned_tested_larger)) return &tuned_tested_larger;")


def test_any_name_is_a_kernels(cxx: str, tmp_path: Path) -> None:
    names = ("kernel.count", "wchar.t", "library.version", "check.problem", "a.b-c", "a.b_c", "a.b_c_most_n", "é.²")
    kernels = []
    for at, name in enumerate(names):
        study, layer = name.split(".")
        made = kernel("direct", layer, CONSTANT.problem.with_runtime(40 + at))
        kernels.append(dataclasses.replace(made, origin=dataclasses.replace(made.origin, study=study)))
    export_library(kernels, tmp_path, ())
    command = [cxx, "-std=c++17", "-fsyntax-only", "conv2d.cpp", "kernels.cpp", "selftest.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_readmes_example_is_c(exported: Exported, cxx: str, tmp_path: Path) -> None:
    _, _, rest = (exported.folder / "README.md").read_text().partition("```c\n")
    include, _, body = rest.partition("```")[0].partition("\n\n")
    assert ".n = 40, .c = 2, .h = 9, .w = 11," in body
    head = "void use(const void *x, const void *w, const void *bias, void *y, void *workspace, conv2d_stream stream)"
    (tmp_path / "use.c").write_text(f"{include}\n{head};\n{head} {{\n{body}}}\n")
    command = [cxx, "-x", "c", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "use.c"]
    command.append(f"-I{exported.folder}")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def with_median(origin: Origin, median_us: float) -> Origin:
    """The same kernel with another time."""
    assert origin.recorded is not None
    timing = dataclasses.replace(origin.recorded.timing, median_us=median_us)
    return dataclasses.replace(origin, recorded=dataclasses.replace(origin.recorded, timing=timing))


@pytest.mark.parametrize(
    ("admitted", "rough_us", "served"),
    [
        (("fp32",), 5.0, "tested.one"),
        (("fp32", "tf32"), 5.0, "tested.one.tf32"),
        (("fp32", "tf32"), 50.0, "tested.one"),
        ((), 5.0, "tested.one"),
    ],
)
def test_fastest_class_that_the_study_admits_is_served(
    admitted: tuple[str, ...], rough_us: float, served: str, tmp_path: Path
) -> None:
    problem = Conv2dProblem(8, 3, 12, 13, 8, 3, 3)
    rough = kernel("mma_strip", "one", problem, precision="tf32")
    rough = dataclasses.replace(rough, origin=with_median(rough.origin, rough_us), admitted=admitted)
    strict = dataclasses.replace(kernel("direct", "one", problem), admitted=admitted)
    exported = export_library([rough, strict], tmp_path, ())
    assert [path.name for path in exported.sources] == ["tested.one.tf32.cu", "tested.one.cu"]
    assert [each.stem for each in exported.served] == [served]


def test_times_with_a_hot_cache_are_not_compared_with_those_with_a_cold_one(tmp_path: Path) -> None:
    problem = Conv2dProblem(8, 3, 12, 13, 8, 3, 3)
    cold, hot = kernel("direct", "cold", problem), kernel("tiled", "hot", problem)
    hot = dataclasses.replace(hot, origin=dataclasses.replace(with_median(hot.origin, 1.0), cache="hot"))
    exported = export_library([hot, cold], tmp_path, ())
    assert [each.stem for each in exported.served] == ["tested.cold"]


def test_classes_that_differ_between_numbers_of_images(cxx: str, tmp_path: Path) -> None:
    problem = Conv2dProblem(8, 3, 12, 13, 8, 3, 3)
    few = kernel("mma_strip", "few", problem, precision="tf32")
    many = kernel("direct", "many", problem.with_runtime(80))
    built = built_for_host(export_library([few, many], tmp_path / "exported", ()), tmp_path, cxx=cxx)
    passed, words = self_test(built)
    assert passed, words


def test_architecture_that_a_kernel_is_not_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=r"cannot be exported for sm_75: mma_strip requires: compute capability 8.0 or newer"
    ):
        export_library([PACKED], tmp_path / "out", (90, 75))
    assert not (tmp_path / "out").exists()


def test_architecture_is_the_gpus_where_a_layer_was_tuned_on_a_cpu(tmp_path: Path) -> None:
    on_cpu = dataclasses.replace(H200, kind="host", name="CPU", arch=80)
    kernels = [kernel("direct", "cpu", CONSTANT.problem.with_runtime(7), on_cpu), PACKED]
    assert export_library(kernels, tmp_path, ()).archs == (90,)


def test_header_that_gives_other_launches_is_refused(tmp_path: Path) -> None:
    header = CHUNKED.header.replace('count = "ceil_div(n, chunk_images)"', 'count = "1"')
    with pytest.raises(StoreError, match="gives different launches from the recorded ones"):
        export_library([dataclasses.replace(CHUNKED, header=header)], tmp_path, ())


def test_packed_filters_that_depend_on_n_are_refused(tmp_path: Path) -> None:
    size = "4 * blocks_k * filter_words"
    assert PACKED.header.count(size) == 1
    header = PACKED.header.replace(size, f"{size} + 4 * min(n, 0)")
    with pytest.raises(TemplateError, match="depends on n, but weights are prepared once"):
        export_library([dataclasses.replace(PACKED, header=header)], tmp_path, ())


@pytest.mark.parametrize("swizzle", ["128 if n < 1000 else 64", "128 if device.sm_count > 1 else 64"])
def test_a_swizzle_that_depends_on_n_or_the_device_is_refused(tmp_path: Path, swizzle: str) -> None:
    header, count = re.subn(r"swizzle( *)= 128", rf'swizzle\1= "{swizzle}"', MAPPED.header)
    assert count > 0
    with pytest.raises(
        TemplateError, match=r"swizzle: .* depends on n or the device, but a kernel is exported with one"
    ):
        export_library([dataclasses.replace(MAPPED, header=header)], tmp_path, ())


def test_filters_that_are_prepared_with_a_workspace_are_refused(tmp_path: Path) -> None:
    text = family("mma_strip").text
    for old, new in (
        ('args  = ["w", "packed_w"]', 'args  = ["w", "packed_w", "workspace"]'),
        ("[packed_w]", '[workspace]\nbytes = "16"\n\n[packed_w]'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "odd.cu.j2").write_text(text)
    config = dataclasses.replace(PACKED.source.config, template="odd")
    odd = chosen(load_template(tmp_path / "odd.cu.j2"), PACKED.problem, config, "odd")
    with pytest.raises(TemplateError, match="prepare takes the workspace"):
        export_library([odd], tmp_path / "out", ())


def test_family_of_more_stages_than_a_library_has_room_for_is_refused(tmp_path: Path) -> None:
    _, begin, rest = CONSTANT.header.partition("[[stage]]\n")
    stage = begin + rest.partition("\n\n")[0] + "\n\n"
    header = CONSTANT.header.replace("[[stage]]\n", 16 * stage + "[[stage]]\n")
    source = dataclasses.replace(CONSTANT.source, stages=17 * CONSTANT.source.stages)
    with pytest.raises(TemplateError, match="has 17 stages; an exported library supports at most 16"):
        export_library([dataclasses.replace(CONSTANT, header=header, source=source)], tmp_path, ())


def test_wrong_kernel_fails_the_proof(tmp_path: Path) -> None:
    exported = export_library([CONSTANT], tmp_path, ())
    source = tmp_path / "tested.constant.cu"
    text = source.read_text()
    assert text.count("EPILOGUE = Epilogue<true, false, relu>;") == 1
    source.write_text(
        text.replace("EPILOGUE = Epilogue<true, false, relu>;", "EPILOGUE = Epilogue<false, false, relu>;")
    )
    with pytest.raises(ProofFailed, match=r"failed its proof, see proof.txt: the self-test failed on the CPU: .*WRONG"):
        list(prove(exported, "no GPU in this test", "not in this test", cache=binary_cache()))
    assert (tmp_path / "proof.txt").read_text().startswith("FAILED: do not use this library\n")


def test_activations_and_residuals_pass_the_self_test(cxx: str, tmp_path: Path) -> None:
    """The kernels, the reference and the golden values agree on what an activation is."""
    words = operation(CONV2D).words["epilogue"][5:]
    layer = Conv2dProblem(20, 2, 6, 7, 4, 3, 3, pad_h=1)
    sizes = {word: dataclasses.replace(layer, h=6 + at, epilogue=word) for at, word in enumerate(words)}
    assert sizes["bias_add_silu"].has("z")
    kernels = [kernel("direct", word, problem) for word, problem in sizes.items()]
    exported = export_library(kernels, tmp_path / "exported", ())
    passed, told = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx))
    assert passed, told
    for word, problem in sizes.items():
        exact = "integers exact" if problem.activation == "relu6" else "sums of integers exact"
        assert re.search(
            rf"tested\.{word}: right at n = 3 and 1, also at 16 and 20( and \d+)?; .*, {exact}$", told, re.MULTILINE
        ), told


def test_proof_says_why_the_library_does_not_link(tmp_path: Path) -> None:
    exported = export_library([CONSTANT], tmp_path, ())
    (tmp_path / "conv2d.map").unlink()
    with pytest.raises(ProofFailed, match=r"g\+\+: .*conv2d\.map: No such file or directory"):
        list(prove(exported, "no GPU in this test", "not in this test", cache=binary_cache()))


def test_proof_without_a_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = export_library([CONSTANT], tmp_path / "exported", ())
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    words = "Permission denied; set TMPDIR to a folder with free space, in which programs can be run"
    with read_only(tmp_path / "temporary"), pytest.raises(ToolchainError, match=words):
        list(prove(exported, "no GPU in this test", "not in this test", cache=binary_cache()))
    assert not (exported.folder / "proof.txt").exists(), "it says nothing of the library"


@pytest.mark.parametrize(
    ("library_us", "noise", "own_us", "words"),
    [
        ((101.5,), 0.0, (100.0,), "101.50 us, the tuner's own kernel 100.00 us: +1.50 % (2.0 % allowed)"),
        ((102.5,), 0.03, (100.0,), "102.50 us, the tuner's own kernel 100.00 us: +2.50 % (3.0 % allowed)"),
        (
            (390.0,),
            0.0,
            (253.0, 392.0),
            "390.00 us, the tuner's own kernel 253.00 to 392.00 us, depending on the addresses of weights:",
        ),
        (
            (390.0,),
            0.0,
            (392.0, 253.0),
            "390.00 us, the tuner's own kernel 253.00 to 392.00 us, depending on the addresses of weights:",
        ),
        ((110.0, 102.0), 0.0, (101.0, 100.0), "102.00 to 110.00 us, the tuner's own kernel 101.00 us, depending on"),
        ((102.0, 110.0), 0.0, (101.0, 100.0), "+0.99 %"),
    ],
)
def test_as_fast_as_the_tuners_own_kernel(
    library_us: Sequence[float], noise: float, own_us: Sequence[float], words: str
) -> None:
    compared = library_timing("a.b", timed_beside(own_us, library_us, noise))
    assert not compared.too_slow
    assert words in str(compared)


@pytest.mark.parametrize(
    ("library_us", "noise", "own_us"),
    [
        ((102.5,), 0.0, (100.0, 100.0)),
        ((103.5,), 0.03, (100.0,)),
        ((405.0, 500.0), 0.0, (253.0, 392.0)),
        ((500.0, 405.0), 0.0, (392.0, 253.0)),
    ],
)
def test_slower_than_the_tuners_own_kernel(library_us: Sequence[float], noise: float, own_us: Sequence[float]) -> None:
    assert library_timing("a.b", timed_beside(own_us, library_us, noise)).too_slow


def test_what_may_be_chance_is_not_slower() -> None:
    swinging = dataclasses.replace(timed(104.0), samples_us=(90.0, 104.0, 120.0) * 4)
    own = timed(100.0)
    assert not library_timing("a.b", FinalsTimings((own,), (), (swinging,), again=own)).too_slow
    assert library_timing("a.b", FinalsTimings((own,), (), (timed(104.0),), again=own)).too_slow


def timed_beside(own_us: Sequence[float], library_us: Sequence[float], noise: float) -> FinalsTimings:
    """Timings in which the first kernel takes longer by the noise when it runs again."""
    own, library = (tuple(map(timed, each)) for each in (own_us, library_us))
    return FinalsTimings(own, (), library, again=timed(own_us[0] / (1 + noise)))


def timed(us: float) -> Timing:
    return dataclasses.replace(TIMING, samples_us=(us,) * 12, median_us=us)
