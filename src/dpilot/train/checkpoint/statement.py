"""The privacy statement of a saved model: what is claimed of it, by whom, and the hash of every file it is made of.

It travels twice. ``statement.json`` in the run folder covers every file there; the metadata of ``model.safetensors``,
and of an ONNX file, hold the same claims with a hash of the weights, for a model that is handed on alone. An
organisation signs both with its Ed25519 key. ``audit.verify`` checks them. What is signed is the canonical JSON of a
statement.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import dpilot
from dpilot._validate import missing_extra
from dpilot.errors import InvalidInput
from dpilot.privacy import events
from dpilot.privacy.ledger.store import canonical
from dpilot.privacy.unit import PrivacyUnit
from dpilot.records import FitRecord, RunRecord, neighbours
from dpilot.train.checkpoint import files
from dpilot.train.plan import Plan

STATEMENT: Final = "statement.json"
KEY: Final = "DPILOT_KEY"
"""The environment variable that names the key file which signs what is saved."""
METADATA: Final = "dpilot_statement"
FORMAT: Final = 1
_TUNING: Final = {"given": "not part of this run: its settings were given"}


def claims(record: RunRecord | FitRecord) -> dict[str, Any]:
    """What is claimed of a run or a fit, in terms that somebody else can check: budget, unit, events, ledger, code."""
    if isinstance(record, FitRecord):
        names = ("purpose", "part", "split", "event")
        found = [{name: entry[name] for name in names} for entry in record.ledger]
        told = {
            "dataset": record.data.get("name", "not named"),
            "tuning": _TUNING.get(str(record.privacy.get("tuning")), "included in epsilon"),
            "unprotected": list(record.unprotected),
        }
        privacy = record.privacy
    else:
        plan = Plan.from_json(json.dumps(record.plan))
        unit = PrivacyUnit.from_dict(record.plan.get("unit"))
        found = [{"purpose": "training", "part": None, "split": None, "event": events.to_dict(plan.event)}]
        told = {
            "tuning": "not part of this run: its epsilon is of the training alone",
            "unprotected": list(record.unprotected),
        }
        privacy = {"epsilon": record.epsilon, "delta": record.delta, "unit": neighbours(record.unprotected, unit)}
    return {
        "format": FORMAT,
        **{name: privacy[name] for name in ("epsilon", "delta", "unit")},
        **({"ledger_head": privacy["head"]} if "head" in privacy else {}),
        **told,
        "events": found,
        "stamps": list(record.stamps),
        "code": f"dpilot {dpilot.__version__}",
        "python": platform.python_version(),
        "packages": _packages(),
    }


def embed(stated: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, str]:
    """Metadata for the safetensors file of ``tensors``."""
    return _metadata(_travelling(stated, tensor_hash(tensors)))


def embed_onnx(model: Any, stated: Mapping[str, Any]) -> None:
    """Write what is ``stated`` into the metadata of an ONNX model, signed by the key of ``DPILOT_KEY``, if any."""
    for name, value in _metadata(_travelling(stated, _onnx_hash(model)), _own_key()).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, value


def _travelling(stated: Mapping[str, Any], weights: str) -> dict[str, Any]:
    """What a file states that is handed on alone: nothing that names a ledger or one fit among others.

    So two fits that released the same write the same file.
    """
    splits = list(dict.fromkeys(each["split"] for each in stated["events"] if each["split"] is not None))
    shown = [
        {**each, "purpose": "", "split": None if each["split"] is None else str(splits.index(each["split"]))}
        for each in stated["events"]
    ]
    told = {name: value for name, value in stated.items() if name != "ledger_head"}
    return {**told, "events": shown, "weights": weights}


def write_statement(folder: Path, stated: Mapping[str, Any], key: Path | None = None) -> Path:
    """Hash every file of ``folder`` and write what is ``stated``, signed by ``key`` or that of ``DPILOT_KEY``.

    Files whose names begin with a dot are working files, and not covered.
    """
    key = key or _own_key()
    if key is not None:
        _sign_weights(folder, key)
    return _write(folder, {**stated, "files": file_hashes(folder)}, key)


def state_record(file: Path, record: FitRecord) -> None:
    """State what is claimed of a record that is saved alone, and its hash; no other file of the folder is covered.

    A statement that is there already stays, and so does what it found of the folder. A record that lists no costs has
    nothing that could be recomputed, and gets none.
    """
    if record.ledger and not (file.parent / STATEMENT).exists():
        _write(file.parent, {**claims(record), "files": {file.name: _file_hash(file)}}, _own_key())


def cover_file(folder: Path, path: Path) -> bool:
    """State the hash of a page that was written after the rest; False where that takes a key which is not at hand.

    What is stated of all other files stays as it was, so an alteration of theirs is found as before. For the same
    reason a statement is signed again only where it bears a sound signature of that very key.
    """
    if not (folder / STATEMENT).exists() or path.parent != folder:
        return True
    (stated, signature), key = read_statement(folder), None
    if signature is not None:
        key = _own_key()
        if key is None or not is_signed_by(stated, signature) or sign(stated, key)["key"] != signature["key"]:
            return False
    _write(folder, {**stated, "files": {**stated["files"], path.name: _file_hash(path)}}, key)
    return True


def _own_key() -> Path | None:
    named = os.environ.get(KEY)
    return Path(named) if named else None


def _write(folder: Path, body: Mapping[str, Any], key: Path | None) -> Path:
    body = {**body, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    written = {
        "statement": body,
        **({} if key is None else {"signature": sign(body, key)}),
        "checksum": _checksum(body),
    }
    files.write(folder / STATEMENT, _text(written).encode())
    return folder / STATEMENT


def _text(written: Mapping[str, Any]) -> str:
    return json.dumps(written, indent=1)


def _checksum(body: Mapping[str, Any]) -> str:
    """SHA-256 of what is stated: it finds an edit, and only a signature shows who made it."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_statement(folder: Path) -> tuple[dict[str, Any], dict[str, str] | None]:
    """What ``folder`` states, and the signature if there is one."""
    try:
        written = json.loads((folder / STATEMENT).read_text())
        return dict(written["statement"]), written.get("signature")
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise InvalidInput(f"{folder} holds no privacy statement ({problem}): expected what save wrote.") from None


def is_as_written(folder: Path) -> bool:
    """Whether the statement of ``folder`` is, byte for byte, what was written with its checksum."""
    text = (folder / STATEMENT).read_text()
    written = json.loads(text)
    return written.get("checksum") == _checksum(written["statement"]) and text == _text(written)


def read_embedded(model: Path) -> tuple[dict[str, Any], dict[str, str] | None, str]:
    """What a safetensors or ONNX file states of itself, the signature, and the hash that its weights have now."""
    if model.suffix == ".onnx":
        return _read_onnx(model)
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    try:
        with safe_open(model, "pt") as file:
            written = json.loads((file.metadata() or {})[METADATA])
        return dict(written["statement"]), written.get("signature"), tensor_hash(load_file(model))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
        raise InvalidInput(f"{model} holds no privacy statement ({problem}): expected what save wrote.") from None


def _read_onnx(path: Path) -> tuple[dict[str, Any], dict[str, str] | None, str]:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise missing_extra("onnx", "export") from None
    try:
        model = onnx.load_model(path)
        (found,) = (each.value for each in model.metadata_props if each.key == METADATA)
        written = json.loads(found)
        return dict(written["statement"]), written.get("signature"), _onnx_hash(model)
    except (OSError, ValueError, KeyError, TypeError, DecodeError) as problem:
        raise InvalidInput(f"{path} holds no privacy statement ({problem}): expected what to_onnx wrote.") from None


def _onnx_hash(model: Any) -> str:
    """SHA-256 of everything in an ONNX model but the statement."""
    bare = type(model)()
    bare.CopyFrom(model)
    kept = [each for each in bare.metadata_props if each.key != METADATA]
    del bare.metadata_props[:]
    bare.metadata_props.extend(kept)
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below ``folder`` but the statement and names that begin with a dot."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path: path.relative_to(folder) for path in found}
    return {
        name.as_posix(): _file_hash(path)
        for path, name in names.items()
        if name.as_posix() != STATEMENT and not any(part.startswith(".") for part in name.parts)
    }


def tensor_hash(tensors: Mapping[str, Any]) -> str:
    """SHA-256 of names, types, shapes and bytes, in the order of the names."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(canonical([name, str(tensor.dtype), list(tensor.shape)]).encode())
        flat = tensor.as_strided((tensor.numel(),), (1,))  # a single number, or none, may have a stride of 0
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def create_key(path: Path) -> Path:
    """Make an Ed25519 key: ``path`` for its owner alone, and ``path.pub`` for everybody; returns the latter."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = path.with_name(path.name + ".pub")
    for each in (path, public):
        if each.exists():
            raise InvalidInput(
                f"{each} is there already: expected a new file. A key that is lost cannot be made again."
            )
    key = Ed25519PrivateKey.generate()
    form = serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    files.write(path, secret, mode=0o600)
    pem = serialization.PublicFormat.SubjectPublicKeyInfo
    files.write(public, key.public_key().public_bytes(serialization.Encoding.PEM, pem))
    return public


def sign(body: Mapping[str, Any], key: Path) -> dict[str, str]:
    """The signature of a statement, with the public key that checks it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as problem:
        raise InvalidInput(
            f"{key} is no key to sign with ({problem}): expected what dpilot key create wrote."
        ) from None
    if not isinstance(private, Ed25519PrivateKey):
        raise InvalidInput(f"{key} is another kind of key: expected Ed25519, as dpilot key create makes.")
    raw = private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    value = private.sign(canonical(body).encode())
    return {"algorithm": "ed25519", "key": b64encode(raw).decode(), "value": b64encode(value).decode()}


def is_signed_by(body: Mapping[str, Any], signature: Mapping[str, str]) -> bool:
    """Whether the signature is that of its own key on this very statement."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(b64decode(signature["key"], validate=True))
        key.verify(b64decode(signature["value"], validate=True), canonical(body).encode())
    except (InvalidSignature, ValueError, KeyError, TypeError):
        return False
    return signature.get("algorithm") == "ed25519"


def read_public_key(path: Path) -> str:
    """The public key in a PEM file, as signatures name it."""
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_public_key(path.read_bytes())
        raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"{path} is no public key ({problem}): expected the .pub of dpilot key create.") from None
    return b64encode(raw).decode()


def fingerprint(key: str) -> str:
    """A short name of a public key."""
    return hashlib.sha256(b64decode(key)).hexdigest()[:16]


def _metadata(body: Mapping[str, Any], key: Path | None = None) -> dict[str, str]:
    return {METADATA: canonical({"statement": body, **({} if key is None else {"signature": sign(body, key)})})}


def _sign_weights(folder: Path, key: Path) -> None:
    """Sign the statements inside the safetensors files of a folder; their tensors stay as they are."""
    from safetensors.torch import load_file, save

    for model in sorted(folder.glob("*.safetensors")):
        body, _, weights = read_embedded(model)
        if body.get("weights") != weights:
            raise InvalidInput(f"{model} is not what it states: it was altered, and is not signed.")
        files.write(model, save(load_file(model), _metadata(body, key)))


@cache
def _packages() -> str:
    """A hash of what is installed, by which two environments are compared; read once, as what runs is loaded once."""
    names = sorted({f"{each.metadata['Name']}=={each.version}" for each in distributions()})
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
