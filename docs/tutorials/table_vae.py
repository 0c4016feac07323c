# %% [markdown]
# # Ask an existing table VAE a question
#
# A table VAE that is trained already, here one of ours, gets a partial encoder of its own. Then we ask it what a penguin weighs
# of which we know a little. Rows with holes are welcome, since this VAE takes them.

# %%
from pathlib import Path

import pandas as pd

import postmatch

ATTACHING_STEPS = 1_000
FITTING_STEPS = 600

here = Path("examples/penguins.csv")  # from the root of the repository
data = pd.read_csv(here)
fitted = postmatch.fit_table(data, quick=True, max_steps=FITTING_STEPS)
vae = fitted.model.vae  # this is all we take: its own partial encoder is left behind

# %% [markdown]
# ## Attach

# %%
x, available = fitted.table.encode(data)
model = postmatch.attach(vae, x, available=available, steps=ATTACHING_STEPS)

# %% [markdown]
# ## Ask
#
# A Gentoo and an Adelie, both of unknown island and sex. What do they weigh, and how sure is that?

# %%
question = pd.DataFrame(columns=data.columns, index=range(2)).astype(data.dtypes)
question["species"] = ["Gentoo", "Adelie"]
question["flipper_length_mm"] = [220.0, 190.0]
seen, observed = fitted.table.encode(question)
answer = model.given(seen, observed)
best, low, high = (
    fitted.table.decode(each, question)["body_mass_g"]
    for each in (answer.impute(), *answer.quantiles([0.05, 0.95]))
)
for i, species in enumerate(question["species"]):
    print(f"{species}: {best[i]:.0f} g, nine times in ten {low[i]:.0f} to {high[i]:.0f} g")

# %% [markdown]
# ## How sure can it be?
#
# The same question of penguins of which all else is known: the intervals shrink, and nine in ten should hold the truth.

# %%
whole = data.dropna().reset_index(drop=True)
asked = whole.assign(body_mass_g=float("nan"))
seen, observed = fitted.table.encode(asked)
low, high = (
    fitted.table.decode(each, asked)["body_mass_g"]
    for each in model.given(seen, observed).quantiles([0.05, 0.95])
)
held = (low <= whole["body_mass_g"]) & (whole["body_mass_g"] <= high)
print(f"with all else known they are {(high - low).mean():.0f} g wide on average")
print(f"and hold the truth of {held.mean():.0%} of the penguins")
