# %% [markdown]
# # Ask a plain PyTorch VAE what it cannot see
#
# A VAE as they are written everywhere: it knows nothing of this package, and nothing of holes. We train it,
# attach a partial encoder to it in a few lines, and let it complete digits of which half is hidden.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributions import Bernoulli, Normal

import postmatch
from postmatch.vaes.external import from_functions

TRAINING_STEPS = 2_000
ATTACHING_STEPS = 1_000
TEST_ROWS = 100

torch.manual_seed(0)
digits = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 16.0  # (rows, 1, 8, 8)
train, test = digits[:1_500], digits[1_500 : 1_500 + TEST_ROWS]


# %% [markdown]
# ## Somebody's VAE


# %%
class VAE(nn.Module):
    def __init__(self, latent_size=8, width=128):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 2 * latent_size),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent_size, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 64),
            nn.Unflatten(1, (1, 8, 8)),
        )

    def encode(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return mean, log_variance

    def decode(self, z):
        return self.decoder(z)

    def loss(self, x):
        mean, log_variance = self.encode(x)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        ink = nn.functional.binary_cross_entropy_with_logits(self.decode(z), x, reduction="sum")
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum()
        return (ink + divergence) / len(x)


vae = VAE()
optimiser = torch.optim.Adam(vae.parameters(), lr=1e-3)
for _ in range(TRAINING_STEPS):
    loss = vae.loss(train[torch.randint(len(train), (128,))])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
vae.eval()
print(f"negative ELBO of the last batch: {loss.item():.1f} nats")

# %% [markdown]
# ## What it says, as distributions
#
# Its encoder returns two tensors and its decoder logits. Two functions say what they mean; the prior is the standard
# normal of its loss. `from_functions` tries them on an example, and complains if anything does not fit.


# %%
def encode(x):
    mean, log_variance = vae.encode(x)
    return Normal(mean, (0.5 * log_variance).exp())


def decode(z):
    return Bernoulli(logits=vae.decode(z), validate_args=False)  # grey is a part of a drop of ink


prior = Normal(torch.zeros(8), 1.0)
model = postmatch.attach(
    from_functions(encode, decode, prior, train[:16], module=vae), train, steps=ATTACHING_STEPS
)

# %% [markdown]
# ## Ask
#
# The lower half is hidden. Any mask will do: nothing was trained for this one in particular.

# %%
observed = torch.ones(len(test), 1, 8, 8, dtype=torch.bool)
observed[..., 4:, :] = False
answer = model.given(test, observed)
filled = answer.impute()
draws = answer.sample(5)  # five ways to complete each of them, (5, rows, 1, 8, 8)


def psnr(image):
    error = (image - test)[~observed].square().mean()
    return -10.0 * error.log10().item()


average = train.mean(0).expand_as(test)
print(f"hidden halves: PSNR {psnr(filled):.1f} dB, of an average digit {psnr(average):.1f} dB")
print(f"what was seen came back untouched: {torch.equal(filled[observed], test[observed])}")

# %% [markdown]
# ## Keep it
#
# The attached part is saved alone. It goes back to this very VAE, and to no other: its weights are recognised.

# %%
import tempfile

with tempfile.TemporaryDirectory() as folder:
    postmatch.save(model, f"{folder}/digits.part")
    mine = from_functions(encode, decode, prior, module=vae)
    again = postmatch.load(f"{folder}/digits.part", vae=mine)
print(f"the same answers: {torch.equal(again.given(test, observed).impute(), filled)}")
