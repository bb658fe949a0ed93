"""Ten loops of training and inference, as people write them, for ``own_loops.py``: on these the cost model
may be developed. Each function builds a model on ``DEVICE`` and returns a step and a few CPU batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[Any], object]
Built = tuple[Step, list[Any]]

#: Where the models are; the CPU in a dry run.
DEVICE = "cuda"
#: Number of different batches of each loop.
BATCHES = 8


def batches(make: Callable[[], Any]) -> list[Any]:
    return [make() for _ in range(BATCHES)]


def pictures(rows: int, side: int) -> torch.Tensor:
    return torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8)


class Residual(nn.Module):
    """A block of ResNet: two convolutions of 3 × 3, or with ``bottleneck`` one between two of 1 × 1."""

    def __init__(self, taken: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        given = width * 4 if bottleneck else width
        sizes = (
            [(taken, width, 1, 1), (width, width, 3, stride), (width, given, 1, 1)]
            if bottleneck
            else [(taken, width, 3, stride), (width, width, 3, 1)]
        )
        layers: list[nn.Module] = []
        for size_in, size_out, kernel, by in sizes:
            layers += [
                nn.Conv2d(size_in, size_out, kernel, by, kernel // 2, bias=False),
                nn.BatchNorm2d(size_out),
                nn.ReLU(inplace=True),
            ]
        self.body = nn.Sequential(*layers[:-1])
        self.short: nn.Module = nn.Identity()
        if stride != 1 or taken != given:
            self.short = nn.Sequential(nn.Conv2d(taken, given, 1, stride, bias=False), nn.BatchNorm2d(given))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.short(x), inplace=True)


def residual_network(depths: tuple[int, ...], bottleneck: bool, classes: int = 1000) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    taken = 64
    for at, depth in enumerate(depths):
        width = 64 << at
        for block in range(depth):
            layers.append(Residual(taken, width, 2 if at and not block else 1, bottleneck))
            taken = width * 4 if bottleneck else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(taken, classes))


def resnet50_training() -> Built:
    """Pictures of bytes, single precision, SGD with momentum."""
    model = residual_network((3, 4, 6, 3), True).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    mean = torch.tensor([123.7, 116.3, 103.5], device=DEVICE).view(1, 3, 1, 1)
    deviation = torch.tensor([58.4, 57.1, 57.4], device=DEVICE).view(1, 3, 1, 1)

    def resnet50_step(batch: Any) -> None:
        images, labels = batch
        loss = criterion(model((images.float() - mean) / deviation), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return resnet50_step, batches(lambda: (pictures(64, 224), torch.randint(0, 1000, (64,))))


def resnet18_inference() -> Built:
    """Pictures in single precision, as a transform on the CPU leaves them; the model in half precision."""
    model = residual_network((2, 2, 2, 2), False).eval().half()
    model = model.to(DEVICE, memory_format=torch.channels_last)

    @torch.inference_mode()
    def resnet18_step(batch: Any) -> Any:
        images = batch.to(dtype=torch.half, memory_format=torch.channels_last)
        return model(images).softmax(1).topk(5)

    return resnet18_step, batches(lambda: torch.randn(128, 3, 224, 224))


def wide_features_training() -> Built:
    """Many wide rows and a small model: the uploads take most of the time."""
    model = nn.Sequential(
        nn.BatchNorm1d(2048), nn.Linear(2048, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1)
    ).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def wide_step(batch: Any) -> None:
        optimizer.zero_grad()
        made = model(batch["features"]).squeeze(1)
        functional.binary_cross_entropy_with_logits(made, batch["clicked"]).backward()
        optimizer.step()

    return wide_step, batches(
        lambda: {"features": torch.randn(8192, 2048), "clicked": torch.randint(0, 2, (8192,)).float()}
    )


def small_perceptron_training() -> Built:
    """Small layers and Adam: the host's calls take most of the time."""
    layers: list[nn.Module] = [nn.Linear(64, 128), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(128, 10)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def perceptron_step(batch: Any) -> Any:
        features, labels = batch
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return perceptron_step, batches(lambda: (torch.randn(256, 64), torch.randint(0, 10, (256,))))


class CausalBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        split = self.queries_keys_values(self.before_attention(x)).chunk(3, dim=2)
        query, key, value = (part.view(rows, length, self.heads, -1).transpose(1, 2) for part in split)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.before_mlp(x))


class Causal(nn.Module):
    """A transformer as GPT-2."""

    def __init__(self, words: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(CausalBlock(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def gpt_training() -> Built:
    """GPT-2 small under autocast to bfloat16, with clipped gradients and AdamW."""
    model = Causal(words=50304, length=512, width=768, layers=12, heads=12).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def gpt_step(tokens: Any) -> None:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            made = model(tokens[:, :-1])
            loss = functional.cross_entropy(made.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return gpt_step, batches(lambda: torch.randint(0, 50304, (8, 513)))


class Encoder(nn.Module):
    """A transformer as BERT, with a classifier of the first word."""

    def __init__(self, words: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=False
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pool, self.classes = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor, padded: torch.Tensor) -> Any:
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.norm(self.words(tokens) + self.places(places))
        x = self.encoder(x, src_key_padding_mask=padded)
        return self.classes(torch.tanh(self.pool(x[:, 0])))


def bert_inference() -> Built:
    """BERT base in half precision, of padded sentences."""
    model = Encoder(words=30522, length=512, width=768, layers=12, heads=12).half().to(DEVICE).eval()

    def bert_step(batch: Any) -> Any:
        with torch.no_grad():
            return model(batch["tokens"], batch["mask"] == 0).argmax(1)

    def sentences() -> Any:
        ends = torch.randint(32, 129, (32, 1))
        return {
            "tokens": torch.randint(0, 30522, (32, 128)),
            "mask": (torch.arange(128).expand(32, 128) < ends).long(),
        }

    return bert_step, batches(sentences)


def two_convolutions(taken: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(taken, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << at for at in range(depth)]
        self.down = nn.ModuleList(two_convolutions(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * each, each, 2, 2) for each in widths[-2::-1])
        self.joined = nn.ModuleList(two_convolutions(2 * each, each) for each in widths[-2::-1])
        self.classes = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> Any:
        kept = []
        for at, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if at else x)
            kept.append(x)
        for up, block in zip(self.up, self.joined, strict=True):
            kept.pop()
            x = block(torch.cat([up(x), kept[-1]], 1))
        return self.classes(x)


def unet_training() -> Built:
    """Segmentation of pictures of 256 × 256 in single precision, with Adam."""
    model = UNet(width=32, depth=5).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def unet_step(batch: Any) -> None:
        images, masks = batch
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(model(images), masks).backward()
        optimizer.step()

    return unet_step, batches(
        lambda: (torch.rand(16, 3, 256, 256), torch.randint(0, 2, (16, 1, 256, 256)).float())
    )


class Sentiment(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20_000, 128, padding_idx=0)
        self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=True, dropout=0.3)
        self.classes = nn.Linear(256, 2)

    def forward(self, tokens: torch.Tensor) -> Any:
        _, (hidden, _) = self.lstm(self.words(tokens))
        return self.classes(hidden[-1])


def lstm_training() -> Built:
    """Classification of texts of 200 words, with Adam."""
    model = Sentiment().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    def lstm_step(batch: Any) -> None:
        tokens, labels = batch
        optimizer.zero_grad()
        criterion(model(tokens), labels).backward()
        optimizer.step()

    return lstm_step, batches(lambda: (torch.randint(1, 20_000, (64, 200)), torch.randint(0, 2, (64,))))


class Ranking(nn.Module):
    """Embeddings of categories and a perceptron of numbers, multiplied pairwise, as in DLRM."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width, device=DEVICE) for _ in range(tables))
        self.numbers = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        self.pairs: torch.Tensor
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))
        self.top = nn.Sequential(
            nn.Linear(width + (tables + 1) * tables // 2, 512),
            nn.ReLU(),
            nn.Linear(512, 256),
            nn.ReLU(),
            nn.Linear(256, 1),
        )

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> Any:
        dense = self.numbers(numbers)
        parts = [dense] + [table(categories[:, at]) for at, table in enumerate(self.tables)]
        stacked = torch.stack(parts, 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], 1)).squeeze(1)


def ranking_training() -> Built:
    """A recommender with 26 tables of 200,000 rows, and Adagrad."""
    model = Ranking(tables=26, rows=200_000, width=16).to(DEVICE)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    criterion = nn.BCEWithLogitsLoss()

    def ranking_step(batch: Any) -> None:
        optimizer.zero_grad()
        criterion(model(batch["numbers"], batch["categories"]), batch["clicked"]).backward()
        optimizer.step()

    return ranking_step, batches(
        lambda: {
            "numbers": torch.rand(8192, 13),
            "categories": torch.randint(0, 200_000, (8192, 26)),
            "clicked": torch.randint(0, 2, (8192,)).float(),
        }
    )


class ChannelNorm(nn.LayerNorm):
    """A layer norm of the channels of pictures."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.scale * self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + made.permute(0, 3, 1, 2)


def convnext(depths: tuple[int, ...], widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0], eps=1e-6)]
    for at, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if at:
            layers += [ChannelNorm(widths[at - 1], eps=1e-6), nn.Conv2d(widths[at - 1], width, 2, 2)]
        layers += [ConvNextBlock(width) for _ in range(depth)]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 1000)]
    return nn.Sequential(*layers, *end)


def convnext_inference() -> Built:
    """Pictures of bytes, resized, cropped, flipped and normalised on the device, and ConvNeXt-T under
    autocast to half precision.
    """
    model = convnext((3, 3, 9, 3), (96, 192, 384, 768)).to(DEVICE).eval()
    mean = torch.tensor([0.485, 0.456, 0.406], device=DEVICE).view(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225], device=DEVICE).view(3, 1, 1)

    def convnext_step(images: Any) -> Any:
        with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.float16):
            x = functional.interpolate(images.float() / 255, size=(256, 256), mode="bilinear")
            x = ((x - mean) / deviation)[:, :, 16:240, 16:240]
            both = model(torch.cat([x, x.flip(3)]))
            return both.float().softmax(1).view(2, -1, 1000).mean(0).argmax(1)

    return convnext_step, batches(lambda: pictures(32, 288))


LOOPS: dict[str, Callable[[], Built]] = {
    each.__name__: each
    for each in (
        resnet50_training,
        resnet18_inference,
        wide_features_training,
        small_perceptron_training,
        gpt_training,
        bert_inference,
        unet_training,
        lstm_training,
        ranking_training,
        convnext_inference,
    )
}
