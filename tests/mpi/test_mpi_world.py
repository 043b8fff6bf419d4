"""As with accelerators: torch's world is the whole replica, DeepSpeed is given a subgroup as mpu and tp_group, and
hidden states travel by torch.distributed. gloo stands in for the accelerators' library."""

from __future__ import annotations

import json
from pathlib import Path

from mpi_helpers import NEW, admit, prompts, result


def test_tokens_are_those_of_hugging_face(
    models: Path, reference: dict[str, list[list[int]]], tmp_path: Path
) -> None:
    """Wrongly split matrices, or groups that are not the stage's, would give other tokens."""
    wanted = [admit(i, ids, new, at=i) for i, (ids, new) in enumerate(zip(prompts(0), NEW, strict=True))]
    script = tmp_path / "script.json"
    case = {"folder": str(models / "llama"), "sequences": 5, "context": 1200, "chunk": 96, "admits": wanted}
    script.write_text(json.dumps([case]))
    (got,) = result(4, "grid_program.py", "2", "2", script, "gloo")
    assert [got[str(i)][0] for i in range(len(NEW))] == reference["llama"]
