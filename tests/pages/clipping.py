import torch

norms, released_extras_sum = torch.rand(8), torch.zeros(1)

# %% before "soft_clip import Soft"
import shutil
from pathlib import Path

from tests.pages import ROOT

shutil.copytree(ROOT / "examples/third_party_rule/src/soft_clip", "soft_clip")
Path("soft_clip-1.dist-info").mkdir()  # as pip would install it
Path("soft_clip-1.dist-info/METADATA").write_text("Name: soft-clip\nVersion: 1\n")
Path("soft_clip-1.dist-info/entry_points.txt").write_text("[dpilot.clipping]\nsoft = soft_clip:Soft\n")
