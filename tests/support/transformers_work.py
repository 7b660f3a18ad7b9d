"""Script of an experiment: a tiny language model in a `transformers.Trainer`, as it is written for Determined. It has
two eval sets, and loads its best checkpoint at the end: the one with the largest loss, which is the first.

Its first attempt waits after five steps until it is asked to give its slots back.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gangline import core

sys.path.append(os.environ["FRAMEWORKS"])
import transformers
from determined.transformers import DetCallback
from safetensors.torch import load_file

GATE_STEP, SAVE_STEPS = 5, 4


class _Texts(torch.utils.data.Dataset[Any]):
    def __init__(self, size: int = 96) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = torch.arange(index, index + 8) % 32
        return {"input_ids": tokens, "labels": tokens}


class _Gate(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is installed where the script runs
    def __init__(self, context: core.Context) -> None:
        super().__init__()
        self._context = context

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        info = self._context.info
        if info is not None and info.attempt == 1 and state.global_step == GATE_STEP and state.is_world_process_zero:
            while self._context.link.preemption is None:
                time.sleep(0.01)


def main() -> None:
    torch.manual_seed(0)
    with core.init() as context:
        shape = {"n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=32, **shape))
        args = transformers.TrainingArguments(
            "out",
            use_cpu=True,
            per_device_train_batch_size=4,
            logging_steps=1,
            max_steps=int(os.environ.get("STEPS", "-1")),
            eval_strategy="steps",
            eval_steps=SAVE_STEPS,
            save_steps=SAVE_STEPS,
            learning_rate=0.01,
            load_best_model_at_end=True,
            metric_for_best_model="eval_b_loss",
            greater_is_better=True,
            report_to=[],
            disable_tqdm=True,
        )
        callback = DetCallback(context, args, user_data={"author": "a lab"})
        data, evals = _Texts(), {"a": _Texts(16), "b": _Texts(24)}
        trainer = transformers.Trainer(
            model, args, train_dataset=data, eval_dataset=evals, callbacks=[_Gate(context), callback]
        )
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        best = Path(trainer.state.best_model_checkpoint)
        saved, now = load_file(best / "model.safetensors"), model.state_dict()
        is_loaded = all(torch.equal(now[name], value) for name, value in saved.items())
        if context.distributed.is_chief:
            print("BEST", best.name, is_loaded, flush=True)


if __name__ == "__main__":
    main()
