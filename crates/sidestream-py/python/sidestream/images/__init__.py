"""Pictures for training: reads folders, lists and shards, and returns batches of decoded pictures, which are
augmented by one kernel launch per batch.

Threads of the package read and decode files without the interpreter. Importing this needs neither PyTorch nor
a GPU.
"""

from sidestream._sidestream import ImageError, image_decoder as decoder, write_sample_images as write_samples
from sidestream.images._augment import Compose, from_torchvision
from sidestream.images._loader import Batch as Batch, Broken as Broken, Loader, Placed as Placed
from sidestream.images._operator import Operator as Operator
from sidestream.images._operators import *

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "GaussianBlur",
    "Grayscale",
    "ImageError",
    "Loader",
    "MixUp",
    "Normalize",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomPerspective",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "decoder",
    "from_torchvision",
    "write_samples",
]
