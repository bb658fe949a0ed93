"""Ten loops that judge the prediction tables. Developers who change the tables do not read this file, so
that a prediction that holds here can be expected to hold for other programs that were never seen.

Each of ``LOOPS`` makes a model on ``DEVICE``, and returns ``step(batch)``, which takes a batch that is on the
device, and some batches on the CPU. Only ``tabular`` reads a value in each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda"

#: Number of different batches in each loop.
COUNT = 8

Step = Callable[[Any], Any]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pixels(count: int, side: int) -> Any:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)


def normalizer() -> Callable[[Any], Any]:
    mean = torch.tensor(MEAN, device=DEVICE).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=DEVICE).view(1, 3, 1, 1)
    return lambda images: images.float().div_(255).sub_(mean).div_(std)


# ------------------------------------------------------------------ vgg


class Vgg(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[Any] = []
        before: Any = 3
        for width in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
            if width == "M":
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            before = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 2048),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(2048, 2048),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(2048, classes),
        )

    def forward(self, x: Any) -> Any:
        return self.classifier(torch.flatten(self.features(x), 1))


def vgg() -> tuple[Step, list[Any]]:
    torch.manual_seed(101)
    model = Vgg(200).to(DEVICE)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    normalize = normalizer()

    def step(batch: Any) -> Any:
        images, labels = batch
        optimizer.zero_grad()
        loss = criterion(model(normalize(images)), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, [(pixels(40, 224), torch.randint(0, 200, (40,))) for _ in range(COUNT)]


# ------------------------------------------------------------------ mobilenet


class InvertedResidual(nn.Module):
    def __init__(self, before: int, width: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = before * expand
        layers: list[Any] = []
        if expand != 1:
            layers += [
                nn.Conv2d(before, hidden, 1, bias=False),
                nn.BatchNorm2d(hidden),
                nn.ReLU6(inplace=True),
            ]
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.BatchNorm2d(width),
        ]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and before == width

    def forward(self, x: Any) -> Any:
        return x + self.layers(x) if self.residual else self.layers(x)


def mobilenet() -> tuple[Step, list[Any]]:
    torch.manual_seed(102)
    layers: list[Any] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(inplace=True)]
    before = 32
    for expand, width, repeats, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for at in range(repeats):
            layers.append(InvertedResidual(before, width, stride if at == 0 else 1, expand))
            before = width
    layers += [nn.Conv2d(before, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6(inplace=True)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 100)]
    model = nn.Sequential(*layers).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.001, alpha=0.9, momentum=0.9, weight_decay=4e-5)

    def step(batch: Any) -> Any:
        images = batch["image"].to(memory_format=torch.channels_last)
        output = model(images)
        loss = F.cross_entropy(output, batch["label"])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            correct = (output.argmax(dim=1) == batch["label"]).sum()
        return {"loss": loss.detach(), "correct": correct}

    return step, [
        {"image": torch.randn(64, 3, 160, 160), "label": torch.randint(0, 100, (64,))} for _ in range(COUNT)
    ]


# ------------------------------------------------------------------ scoring


def scoring() -> tuple[Step, list[Any]]:
    torch.manual_seed(103)
    model = nn.Sequential(
        nn.Linear(2048, 256),
        nn.GELU(),
        nn.LayerNorm(256),
        nn.Linear(256, 64),
        nn.GELU(),
        nn.Linear(64, 1),
    )
    model = model.to(DEVICE).eval()
    mean, scale = torch.randn(2048, device=DEVICE), torch.rand(2048, device=DEVICE) + 0.5

    @torch.no_grad()
    def step(features: Any) -> Any:
        score = torch.sigmoid(model((features - mean) * scale)).squeeze(1)
        return torch.topk(score, 100)

    return step, [torch.randn(8192, 2048) for _ in range(COUNT)]


# ------------------------------------------------------------------ tabular


class Tabular(nn.Module):
    def __init__(self, sizes: list[int], numbers: int) -> None:
        super().__init__()
        widths = [min(50, (size + 1) // 2) for size in sizes]
        self.embeddings = nn.ModuleList([nn.Embedding(*shape) for shape in zip(sizes, widths, strict=True)])
        self.norm = nn.BatchNorm1d(numbers)
        self.dropout = nn.Dropout(0.05)
        before = sum(widths) + numbers
        hidden: list[Any] = []
        for width in (512, 256, 128):
            hidden += [nn.Linear(before, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Dropout(0.1)]
            before = width
        self.layers = nn.Sequential(*hidden, nn.Linear(before, 1))

    def forward(self, categories: Any, numbers: Any) -> Any:
        x = torch.cat([table(categories[:, at]) for at, table in enumerate(self.embeddings)], dim=1)
        x = torch.cat([self.dropout(x), self.norm(numbers)], dim=1)
        return self.layers(x).squeeze(-1)


def tabular() -> tuple[Step, list[Any]]:
    torch.manual_seed(104)
    sizes = [3, 7, 12, 24, 31, 52, 100, 240, 366, 1000, 1500, 4000, 9000, 20000, 50000, 120000]
    model = Tabular(sizes, 13).to(DEVICE)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    running = {"loss": 0.0, "steps": 0}

    def step(batch: Any) -> float:
        inputs, target = batch
        optimizer.zero_grad()
        loss = criterion(model(inputs["categories"], inputs["numbers"]), target)
        loss.backward()
        optimizer.step()
        running["loss"] += loss.item()
        running["steps"] += 1
        return running["loss"] / running["steps"]

    def make(rows: int) -> Any:
        categories = torch.stack([torch.randint(0, size, (rows,)) for size in sizes], dim=1)
        inputs = {"categories": categories, "numbers": torch.randn(rows, 13)}
        return inputs, torch.randint(0, 2, (rows,)).float()

    return step, [make(4096) for _ in range(COUNT)]


# ------------------------------------------------------------------ vit


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 1 + 14 * 14, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit() -> tuple[Step, list[Any]]:
    torch.manual_seed(105)
    model = VisionTransformer(768, 12, 12, 1000).to(DEVICE)
    decay = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: min(1.0, (at + 1) / 1000))
    normalize = normalizer()

    def step(batch: Any) -> Any:
        images, labels = batch
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(normalize(images)), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step, [(pixels(64, 224), torch.randint(0, 1000, (64,))) for _ in range(COUNT)]


# ------------------------------------------------------------------ gpt


class CausalBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, past: Any) -> tuple[Any, Any]:
        batch, length, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in (q, k, v))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        x = x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))
        return x, (k, v)


class Gpt(nn.Module):
    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, context: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([CausalBlock(width, heads) for _ in range(depth)])
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Any, past: Any = None) -> tuple[Any, Any]:
        start = 0 if past is None else past[0][0].shape[2]
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        cache = []
        for at, block in enumerate(self.blocks):
            x, kept = block(x, None if past is None else past[at])
            cache.append(kept)
        return self.head(self.ln_f(x[:, -1:])), cache


def gpt() -> tuple[Step, list[Any]]:
    torch.manual_seed(106)
    model = Gpt(50257, 1024, 16, 16, 1024).to(DEVICE).half().eval()

    @torch.inference_mode()
    def step(prompt: Any) -> Any:
        tokens, past, made = prompt, None, []
        for _ in range(6):
            logits, past = model(tokens, past)
            tokens = logits[:, -1].argmax(dim=-1, keepdim=True)
            made.append(tokens)
        return torch.cat([prompt, *made], dim=1)

    return step, [torch.randint(0, 50257, (8, 384)) for _ in range(COUNT)]


# ------------------------------------------------------------------ language_model


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, 2, batch_first=True, dropout=0.3)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Any) -> Any:
        output, _ = self.rnn(self.drop(self.encoder(tokens)))
        return self.decoder(self.drop(output))


def language_model() -> tuple[Step, list[Any]]:
    torch.manual_seed(107)
    model = LanguageModel(10000, 640).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step(text: Any) -> Any:
        model.zero_grad()
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), text[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss.detach()

    return step, [torch.randint(0, 10000, (48, 71)) for _ in range(COUNT)]


# ------------------------------------------------------------------ diffusion


class ResidualBlock(nn.Module):
    def __init__(self, before: int, width: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, before), nn.GroupNorm(32, width)
        self.conv1 = nn.Conv2d(before, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(time, width)
        self.dropout = nn.Dropout(0.1)
        self.skip = nn.Identity() if before == width else nn.Conv2d(before, width, 1)

    def forward(self, x: Any, time: Any) -> Any:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        return h + self.skip(x)


class SpatialAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Any) -> Any:
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        tokens, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return x + tokens.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    def __init__(self, width: int, factors: tuple[int, ...]) -> None:
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        widths = [width * factor for factor in factors]
        self.down, self.smaller = nn.ModuleList(), nn.ModuleList()
        before = width
        for each in widths:
            self.down.append(
                nn.ModuleList([ResidualBlock(before, each, time), ResidualBlock(each, each, time)])
            )
            self.smaller.append(nn.Conv2d(each, each, 3, 2, 1))
            before = each
        self.middle = nn.ModuleList([ResidualBlock(before, before, time) for _ in range(2)])
        self.attention = SpatialAttention(before, 4)
        self.up, self.larger = nn.ModuleList(), nn.ModuleList()
        for each in reversed(widths):
            self.larger.append(nn.Conv2d(before, each, 3, padding=1))
            self.up.append(
                nn.ModuleList([ResidualBlock(2 * each, each, time), ResidualBlock(2 * each, each, time)])
            )
            before = each
        self.last = nn.Sequential(nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, 3, 3, padding=1))

    def forward(self, x: Any, t: Any) -> Any:
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000.0) / half))
        angles = t[:, None].float() * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x = self.first(x)
        kept = []
        for blocks, smaller in zip(self.down, self.smaller, strict=True):
            for block in blocks:
                x = block(x, time)
                kept.append(x)
            x = smaller(x)
        x = self.middle[1](self.attention(self.middle[0](x, time)), time)
        for blocks, larger in zip(self.up, self.larger, strict=True):
            x = larger(F.interpolate(x, scale_factor=2, mode="nearest"))
            for block in blocks:
                x = block(torch.cat([x, kept.pop()], dim=1), time)
        return self.last(x)


def diffusion() -> tuple[Step, list[Any]]:
    torch.manual_seed(108)
    model = UNet(64, (1, 2, 4)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    scaler = torch.amp.GradScaler(DEVICE)
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=DEVICE), dim=0)

    def step(batch: Any) -> Any:
        (images,) = batch
        clean = images.float() / 127.5 - 1
        noise = torch.randn_like(clean)
        t = torch.randint(0, 1000, (clean.shape[0],), device=clean.device)
        kept = alphas[t].view(-1, 1, 1, 1)
        noisy = kept.sqrt() * clean + (1 - kept).sqrt() * noise
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = F.mse_loss(model(noisy, t), noise)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step, [(pixels(48, 64),) for _ in range(COUNT)]


# ------------------------------------------------------------------ detector


class BasicBlock(nn.Module):
    def __init__(self, before: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Any) -> Any:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


def head(width: int, outputs: int) -> Any:
    inner = [part for _ in range(3) for part in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*inner, nn.Conv2d(width, outputs, 3, padding=1))


class Detector(nn.Module):
    ANCHORS = 3

    def __init__(self, classes: int, width: int = 128) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.stages, before = nn.ModuleList(), 64
        for each, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            self.stages.append(nn.Sequential(BasicBlock(before, each, stride), BasicBlock(each, each)))
            before = each
        self.lateral = nn.ModuleList([nn.Conv2d(each, width, 1) for each in (128, 256, 512)])
        self.smooth = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(3)])
        self.scores = head(width, self.ANCHORS * classes)
        self.boxes = head(width, self.ANCHORS * 4)
        nn.init.constant_(self.scores[-1].bias, -math.log(99.0))

    def forward(self, x: Any) -> tuple[Any, Any]:
        x = self.stages[0](self.stem(x))
        levels = []
        for stage, lateral in zip(list(self.stages)[1:], self.lateral, strict=True):
            x = stage(x)
            levels.append(lateral(x))
        for at in (1, 0):
            levels[at] = levels[at] + F.interpolate(levels[at + 1], size=levels[at].shape[-2:])
        levels = [smooth(level) for smooth, level in zip(self.smooth, levels, strict=True)]
        scores = [self.scores(level).permute(0, 2, 3, 1) for level in levels]
        boxes = [self.boxes(level).permute(0, 2, 3, 1) for level in levels]
        return (
            torch.cat([each.reshape(each.shape[0], -1, self.classes) for each in scores], dim=1),
            torch.cat([each.reshape(each.shape[0], -1, 4) for each in boxes], dim=1),
        )


def anchors_of(side: int) -> Any:
    """Centre and size of all anchors of an image, in the order of the detector's outputs."""
    levels = []
    for stride in (8, 16, 32):
        centres = (torch.arange(side // stride) + 0.5) * stride
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        ratios = torch.tensor([0.5, 1.0, 2.0])
        sizes = torch.stack([4 * stride * ratios.sqrt(), 4 * stride / ratios.sqrt()], dim=1)
        places = torch.stack([x, y], dim=-1).reshape(-1, 1, 2).expand(-1, 3, 2)
        levels.append(torch.cat([places, sizes.expand(places.shape[0], 3, 2)], dim=-1).reshape(-1, 4))
    return torch.cat(levels)


def corners(boxes: Any) -> Any:
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], dim=-1)


def overlaps(one: Any, other: Any) -> Any:
    """Intersection over union of each of ``one`` (batch, boxes, 4) with each of ``other`` (anchors, 4)."""
    one, other = corners(one)[:, :, None], corners(other)[None, None]
    inner = (torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])).clamp(
        min=0
    )
    shared = inner.prod(-1)
    areas = (one[..., 2:] - one[..., :2]).prod(-1) + (other[..., 2:] - other[..., :2]).prod(-1)
    return shared / (areas - shared + 1e-6)


def focal(logits: Any, targets: Any, alpha: float = 0.25, gamma: float = 2.0) -> Any:
    p = torch.sigmoid(logits)
    loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    return (alpha * targets + (1 - alpha) * (1 - targets)) * loss * (1 - p_t) ** gamma


def detector() -> tuple[Step, list[Any]]:
    torch.manual_seed(109)
    classes, side, accumulate = 20, 320, 4
    model = Detector(classes).to(DEVICE)
    anchors = anchors_of(side).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    done = 0

    def step(batch: Any) -> Any:
        nonlocal done
        scores, offsets = model(batch["images"])
        with torch.no_grad():
            best, which = overlaps(batch["boxes"], anchors).max(dim=1)
            positive = best > 0.5
            labels = batch["labels"].gather(1, which)
            targets = F.one_hot(labels, classes).float() * positive[..., None]
            matched = batch["boxes"].gather(1, which[..., None].expand(-1, -1, 4))
            wanted = torch.cat(
                [
                    (matched[..., :2] - anchors[:, :2]) / anchors[:, 2:],
                    torch.log(matched[..., 2:] / anchors[:, 2:]),
                ],
                dim=-1,
            )
            counted = (positive | (best < 0.4))[..., None]
            number = positive.sum().clamp(min=1)
        score_loss = (focal(scores, targets) * counted).sum() / number
        box_loss = (F.smooth_l1_loss(offsets, wanted, reduction="none") * positive[..., None]).sum() / number
        loss = score_loss + box_loss
        (loss / accumulate).backward()
        done += 1
        if done % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        return {"score": score_loss.detach(), "box": box_loss.detach()}

    def make(count: int) -> Any:
        boxes = torch.cat([torch.rand(count, 16, 2) * side, torch.rand(count, 16, 2) * 120 + 16], dim=-1)
        labels = torch.randint(0, classes, (count, 16))
        return {"images": torch.rand(count, 3, side, side), "boxes": boxes, "labels": labels}

    return step, [make(16) for _ in range(COUNT)]


# ------------------------------------------------------------------ contrastive


def augmented(images: Any) -> Any:
    """A random crop, flip, change of colours and grey for each image."""
    count, device = images.shape[0], images.device
    scale = torch.empty(count, device=device).uniform_(0.5, 1.0)
    flip = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    theta = torch.zeros(count, 2, 3, device=device)
    theta[:, 0, 0] = scale * flip
    theta[:, 1, 1] = scale
    theta[:, :, 2] = (torch.rand(count, 2, device=device) * 2 - 1) * (1 - scale[:, None])
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    x = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    brightness, contrast = (0.6 + 0.8 * torch.rand(2, count, 1, 1, 1, device=device)).unbind(0)
    x = x * brightness
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    x = ((x - mean) * contrast + mean).clamp(0, 1)
    grey = x.mean(dim=1, keepdim=True).expand_as(x)
    return torch.where(torch.rand(count, 1, 1, 1, device=device) < 0.2, grey, x)


class CifarNet(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks, before = [], 16
        for width, stride in ((16, 1), (32, 2), (64, 2)):
            for at in range(depth):
                blocks.append(BasicBlock(before, width, stride if at == 0 else 1))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.projector = nn.Sequential(
            nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(inplace=True), nn.Linear(128, 64)
        )

    def forward(self, x: Any) -> Any:
        out = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.projector(F.adaptive_avg_pool2d(out, 1).flatten(1))


def contrastive() -> tuple[Step, list[Any]]:
    torch.manual_seed(110)
    model = CifarNet().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10000)

    def step(images: Any) -> Any:
        images = images.float() / 255
        first, second = model(augmented(images)), model(augmented(images))
        z = F.normalize(torch.cat([first, second]), dim=1)
        count = images.shape[0]
        logits = z @ z.t() / 0.5
        logits = logits.masked_fill(torch.eye(2 * count, dtype=torch.bool, device=z.device), -1e9)
        target = torch.arange(2 * count, device=z.device).roll(count)
        loss = F.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    return step, [pixels(256, 32) for _ in range(COUNT)]


LOOPS: dict[str, Callable[[], tuple[Step, list[Any]]]] = {
    "vgg": vgg,
    "mobilenet": mobilenet,
    "scoring": scoring,
    "tabular": tabular,
    "vit": vit,
    "gpt": gpt,
    "language_model": language_model,
    "diffusion": diffusion,
    "detector": detector,
    "contrastive": contrastive,
}
