import numpy as np
import pandas as pd

good = np.random.default_rng(0).random(2_000) < 0.5
pd.DataFrame({"review": np.where(good, "a fine film", "a dull film"), "label": np.where(good, "good", "bad")}).to_csv(
    "reviews.csv", index=False
)
