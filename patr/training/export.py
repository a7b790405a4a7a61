"""A trained policy as a Hugging Face directory."""

import shutil
from pathlib import Path

from patr.models.weights import find_checkpoint, save_checkpoint
from patr.text.tokenizer import END_OF_TEXT
from patr.training import build, workdirs
from patr.training.loop import Run

TOKENIZER_FILES = ("*token*.json", "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json")


def export_workdir(workdir: Path, out: Path, step: int | str | None = None, dtype: str = "bfloat16") -> int:
    """Write a checkpoint's policy and tokenizer to `out`; return its step.

    step: a number, 'best' by success rate of those kept, or None for the newest.
    dtype: 'bfloat16' or 'float32', of the tensors. Raises ValueError if `out` holds something or there is no
    checkpoint.
    """
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: give a new directory")
    config = workdirs.read_config(workdir)
    run = Run(build.build(config), workdir.absolute())
    try:
        run.restore(step)
    finally:
        run.checkpoints.close()
    special_ids = {"eos_token_id": run.chat.stop_ids[0], "pad_token_id": run.chat.tokenizer.token_id(END_OF_TEXT)}
    save_checkpoint(run.state.params, run.model_config, out, dtype, special_ids=special_ids)
    source = find_checkpoint(config.model.path) if config.model.path else workdir / "tokenizer"
    for file in {file for pattern in TOKENIZER_FILES for file in Path(config.tokenizer.path or source).glob(pattern)}:
        shutil.copy(file, out)
    return run.state.step
