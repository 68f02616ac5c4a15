"""Models of sentence-transformers without torch: written once as ONNX, and run by onnxruntime.

The file contains everything that the model does with tokens, including pooling and normalisation. `write` needs torch,
and compares the result with the original model; `Onnx` reads it with onnxruntime and tokenizers alone.

Does not find models (fetching.py). Models with separate networks for queries and documents, and tokenizers that are not
of the tokenizers library, are refused.

Shapes: n texts, t tokens, w width.
"""

import json
import os
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from softkv.embedders.distillation import made_whole, require_new
from softkv.embedders.fetching import fetch
from softkv.embedders.static import CARD, TOKENIZER
from softkv.embedders.transformer import Transformer
from softkv.embedders.vectors import PROBES, embedded, known_vectors, refuse_unknown
from softkv.errors import EmbedderError, MissingExtra
from softkv.ndarrays import Matrix
from softkv.progress import Progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODEL = "model.onnx"
FORMAT = "softkv-onnx-1"
ALIKE = 1e-4  # largest difference of a number in a vector from that of the original model
OPSET = 17

_TEXTS = 512  # texts that are sorted by length together
_TOGETHER = 32  # texts in one batch
_TRIED = (*PROBES, "  How\n much ", "How much, 日本 🎈 Ünïcode?", "treasure " * 700)


@final
class Onnx:
    """A model in a folder that `write` made. Any number of threads may use it at the same time."""

    def __init__(self, name: str, session: Any, tokenizer: "Tokenizer", card: dict[str, Any]) -> None:
        self.name, self.width, self.normalised = name, int(card["width"]), bool(card["normalised"])
        self.query_prompt: str | None = card["query_prompt"]
        self.document_prompt: str | None = card["document_prompt"]
        self._session, self._tokenizer, self._silent = session, tokenizer, set(card["silent"])
        self._inputs = [one.name for one in session.get_inputs()]

    @classmethod
    def load(cls, folder: Path, name: str) -> "Onnx":
        """Open a folder."""
        from tokenizers import Tokenizer

        session = _session(folder / MODEL)
        try:
            card = json.loads((folder / CARD).read_text(encoding="utf-8"))
            if card["format"] != FORMAT:
                raise ValueError(f"its format is {card['format']!r}, not {FORMAT!r}")
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
            tokenizer.no_padding()
            tokenizer.enable_truncation(card["tokens"])
            return cls(name, session, tokenizer, card)
        except Exception as error:  # the tokenizers wheel raises bare Exception
            raise EmbedderError(f"the model in {folder} cannot be read: {error!r}. Write it again.") from None

    def documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Matrix:
        """The vectors of texts as keys, with the model's prompt for documents before them."""
        return self._embed(texts, self.document_prompt, progress)

    def queries(self, texts: Sequence[str]) -> Matrix:
        """The vectors of texts as queries, with the model's prompt for queries before them."""
        return self._embed(texts, self.query_prompt, None)

    def _embed(self, texts: Sequence[str], prompt: str | None, progress: Progress | None) -> Matrix:
        def embed(block: list[str], first: int) -> Matrix:
            plain = [self._tokenizer.encode(text) for text in block]
            refuse_unknown(
                block, np.array([not self._silent.issuperset(one.ids) for one in plain]), self.name, first=first
            )
            found = np.empty((len(block), self.width), np.float32)
            encoded = [self._tokenizer.encode(prompt + text) for text in block] if prompt else plain
            order = np.argsort([len(one.ids) for one in encoded], kind="stable")
            for start in range(0, len(order), _TOGETHER):
                some = order[start : start + _TOGETHER]
                found[some] = self._vectors([encoded[at] for at in some])
            return known_vectors(found, block, name=self.name, width=self.width, first=first)

        return embedded(texts, self.width, _TEXTS, embed, progress)

    def _vectors(self, encoded: list[Any]) -> Matrix:
        """The vectors of one batch of texts, padded to the longest."""
        fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        given = {
            name: np.zeros((len(encoded), max(len(one.ids) for one in encoded)), np.int64) for name in self._inputs
        }
        for name, cells in given.items():  # padding is 0, and the mask hides it
            for row, one in zip(cells, encoded, strict=True):
                row[: len(one.ids)] = getattr(one, fields[name])
        vectors: Matrix = self._session.run(None, given)[0]
        return vectors


def write(source: str, folder: str | os.PathLike[str]) -> Onnx:
    """Write the model of a name or in a folder as ONNX into a new folder, which `find` opens."""
    target = Path(folder)
    require_new(target)
    _runtime()
    model = fetch(source).to("cpu").float().eval()
    present, tokenizer = Transformer(source, model), _tokenizer(model, source)
    card = {name: getattr(present, name) for name in ("width", "normalised", "query_prompt", "document_prompt")}
    card |= {"format": FORMAT, "source": source, "tokens": int(model.max_seq_length or 0)}
    card["silent"] = sorted(model.tokenizer.all_special_ids)
    with made_whole(target) as beside:
        (beside / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
        (beside / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
        _export(model, beside, source)
        found = Onnx.load(beside, str(folder))
        pairs = [(found.documents(_TRIED), present.documents(_TRIED)), (found.queries(_TRIED), present.queries(_TRIED))]
        if not all(np.abs(mine - theirs).max() <= ALIKE for mine, theirs in pairs):
            raise EmbedderError(f"{source!r} does not behave in ONNX as it does in torch, so it was not written.")
    return found


def _tokenizer(model: Any, source: str) -> Any:
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None or not model.max_seq_length:
        raise EmbedderError(
            f"{source!r} cannot be written: it takes a tokenizer of the tokenizers library, and a longest text. Choose "
            "a model with a fast tokenizer, and a max_seq_length."
        )
    return backend


def _export(model: Any, folder: Path, source: str) -> None:
    """Write the graph as onnxruntime optimises it, which otherwise takes half a second at each start."""
    torch, runtime = import_module("torch"), _runtime()
    tokens = model.tokenizer(["treasure", "a longer text"], padding=True, return_tensors="pt")
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in tokens]

    whole = torch.nn.Sequential(model)
    whole.forward = lambda *given: model(dict(zip(names, given, strict=True)))["sentence_embedding"]
    axes = {name: {0: "n", 1: "t"} for name in names} | {"vectors": {0: "n"}}
    plain = str(folder / f"plain-{MODEL}")
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # warnings about tracing; the result is compared with the original
            torch.onnx.export(
                whole,
                tuple(tokens[name] for name in names),
                plain,
                input_names=names,
                output_names=["vectors"],
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,  # the newer exporter takes two more packages, and five times as long
            )
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(folder / MODEL)
        options.log_severity_level = 3
        runtime.InferenceSession(plain, options, providers=["CPUExecutionProvider"])
        os.remove(plain)
    except Exception as error:
        raise EmbedderError(f"{source!r} cannot be written as ONNX: {str(error).splitlines()[0]}") from error


def _session(path: Path) -> Any:
    runtime = _runtime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = (
        runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )  # that was done when it was written
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise EmbedderError(f"{path} cannot be read: {str(error).splitlines()[0]}. Write it again.") from None


def _runtime() -> Any:
    try:
        return import_module("onnxruntime")
    except ImportError as error:
        raise MissingExtra("a model in ONNX", package="onnxruntime", extra="onnx") from error
