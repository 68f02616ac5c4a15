"""Texts and tiny models for the tests of embedders."""

import json
from pathlib import Path
from typing import Any

TEXT = "a boy looking for treasure in the old city with red cars and cold coffee how much does it cost ?"
WORDS = TEXT.split()
PIECES = ["##ing", "##er", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
VOCABULARY = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(WORDS), *PIECES]


def intents(folder: str, part: str) -> tuple[list[str], list[str]]:
    """The questions of CLINC150 and their intents."""
    pairs = json.loads((Path(folder) / "clinc150" / "data_full.json").read_text(encoding="utf-8"))[part]
    return [text for text, _ in pairs], [intent for _, intent in pairs]


def tiny_model(folder: Path, *, prompts: dict[str, str] | None = None, seed: int = 0) -> Path:
    """Write a sentence-transformers model of a few thousand random weights into a folder."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=32).save_pretrained(folder)
    layers = [("", "Transformer"), ("1_Pooling", "Pooling")]
    write(
        folder / "modules.json",
        [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for at, (path, kind) in enumerate(layers)
        ],
    )
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True})
    write(folder / "config_sentence_transformers.json", {"prompts": prompts or {}})
    return folder


def write(path: Path, content: Any) -> None:
    """Write JSON."""
    path.write_text(json.dumps(content), encoding="utf-8")
