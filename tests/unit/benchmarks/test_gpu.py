"""The GPU benchmark in small sizes on the CPU: both sides train, and blocks are counted as they should be."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_model import Gpt, ResNet

CPU = torch.device("cpu")
TEXT, IMAGES = gpu.JOBS
SMALL_TEXT = replace(
    TEXT,
    units_per_record=8,
    batch_size=2,
    make_model=lambda: Gpt(words=32, length=8, width=16, layers=1, heads=2),
    make_records=lambda device: gpu.make_text(device, 8, 32),
    steps_per_block=3,
)
SMALL_IMAGES = replace(
    IMAGES,
    batch_size=2,
    make_model=lambda: ResNet(depths=(1, 1), width=4, classes=10),
    make_records=lambda device: gpu.make_images(device, 32, 10),
    steps_per_block=3,
)


@pytest.mark.parametrize(
    ("job", "backend"),
    [(SMALL_TEXT, None), (SMALL_TEXT, "eager"), (SMALL_IMAGES, None)],
    ids=["text", "eager", "images"],
)
def test_both_sides_train_as_many_blocks(
    job: gpu.Job,
    backend: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    steps: dict[str, int] = {"ours": 0, "theirs": 0}
    _count_steps(monkeypatch, steps)
    duel = gpu.run_duel(job, CPU, backend, most_pairs=2)
    assert len(duel.ours) == len(duel.theirs) == 2
    assert all(seconds > 0 for seconds in (*duel.ours, *duel.theirs))
    blocks = gpu.WARM_UP_PAIRS + 2
    assert steps == {"ours": blocks * 3, "theirs": blocks * 3}
    assert list(tmp_path.iterdir()) == []
    gpu.print_duel(job, backend, duel)
    line = capsys.readouterr().out.splitlines()[-1]
    assert f"{job.name:10} compile {'on' if backend else 'off'}" in line
    assert math.isfinite(duel.ratio.high)


def _count_steps(monkeypatch: pytest.MonkeyPatch, steps: dict[str, int]) -> None:
    """Counts what each side computes, by the function that both call for a loss."""
    loss_of = gpu._loss_of

    def counted(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        is_theirs = sys._getframe(1).f_code is gpu.BareLoop.run.__code__
        steps["theirs" if is_theirs else "ours"] += 1
        return loss_of(scores, targets)

    monkeypatch.setattr(gpu, "_loss_of", counted)


def test_models_have_their_published_sizes() -> None:
    with torch.device("meta"):
        sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (Gpt(), ResNet())]
    # GPT-2 small has 124,439,808 with 50,257 words.
    assert sizes == [124_439_808 + 47 * 768, 25_557_032]


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit, match=r"^gpu: torch sees no GPU here; run this benchmark on a machine with one$"):
        gpu.main()
