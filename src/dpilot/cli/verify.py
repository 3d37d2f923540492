"""``dpilot verify MODEL``, ``dpilot sign RUN``, ``dpilot key create FILE``: statements that a stranger can check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpilot.cli import console

ALTERED = 1
"""The exit code of a model that is not what it states."""

keys = typer.Typer(help="The key by which an organisation signs its models.", no_args_is_help=True)


@keys.command("create")
def create(
    path: Annotated[Path, typer.Argument(help="The new key; PATH.pub is what others check by.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make an Ed25519 key. DPILOT_KEY=PATH then signs what is saved; keep PATH secret, and hand out PATH.pub."""
    from dpilot.train.checkpoint.statement import create_key, fingerprint, read_public_key

    public = create_key(path)
    name = fingerprint(read_public_key(public))
    if json:
        console.json({"key": str(path), "public": str(public), "fingerprint": name})
    else:
        console.line(f"{path} signs (keep it secret), {public} checks; fingerprint {name}")


def sign(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    key: Annotated[Path, typer.Option(help="The key of dpilot key create.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Sign a run folder as it is now, and the statement inside its weights."""
    from dpilot.audit.verify import verify as check
    from dpilot.errors import InvalidInput
    from dpilot.train.checkpoint.statement import write_statement

    found = check(run)
    if not found.held:
        problems = "; ".join(f"{each.name}: {each.found}" for each in found.checks if each.held is False)
        raise InvalidInput(f"{run} is not what it states ({problems}): nothing was signed.")
    written = write_statement(run, found.statement, key)
    signer = check(run).signer
    if json:
        console.json({"statement": str(written), "signer": signer})
    else:
        console.line(f"{written}: signed by the key {signer}")


def verify(
    model: Annotated[
        str, typer.Argument(help="A run folder, or a safetensors, ONNX or skops file alone.", show_default=False)
    ],
    key: Annotated[Path | None, typer.Option(help="The public key that must have signed it.")] = None,
    ledger: Annotated[str | None, typer.Option(help="The data set's ledger, to check that it went on.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say who claims what of a saved model, recompute its epsilon, and check files, ledger and signature.

    Exit code 1 if anything was altered or does not follow; an unsigned run verifies, and is called unsigned.
    """
    from dpilot.audit.verify import verify as check
    from dpilot.export.files import opened

    with opened(Path(model)) as where:
        found = check(where, key=key, ledger=ledger)
    if json:
        console.json(found.to_dict())
    else:
        stated = found.statement
        who = "an unsigned statement" if found.signer is None else f"the key {found.signer}"
        console.line(f"{who} claims epsilon {stated['epsilon']:.6g} at delta {stated['delta']:g}, {stated['unit']}")
        console.line(f"tuning: {stated['tuning']}; noise: {', '.join(stated['stamps'])}")
        rows = [[each.name, {True: "held", False: "FAILED", None: "-"}[each.held], each.found] for each in found.checks]
        console.table("what was checked", ["what", "outcome", "found"], rows)
    return 0 if found.held else ALTERED
