# %% [markdown]
# # Inpaint with an `AutoencoderKL` of diffusers
#
# The autoencoder of latent diffusion models was never meant to answer questions about hidden pixels. We build a small one
# with diffusers' own class, train it as anybody would, and attach to it. Its latent is a map of numbers, and so the
# attached posterior is one that runs along the positions of that map.
#
# This needs `pip install 'postmatch[diffusers]'`.

# %%
import torch
from diffusers import AutoencoderKL
from sklearn.datasets import load_digits

import postmatch
from postmatch.vaes.external_diffusers import from_diffusers

TRAINING_STEPS = 1_000
ATTACHING_STEPS = 1_000
TEST_ROWS = 100

torch.manual_seed(0)
digits = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 16.0  # (rows, 1, 8, 8)
train, test = digits[:1_500], digits[1_500 : 1_500 + TEST_ROWS]

# %% [markdown]
# ## A stranger's training loop
#
# Images in [-1, 1], squared error, a weak KL term: nothing here knows of postmatch.

# %%
autoencoder = AutoencoderKL(
    in_channels=1,
    out_channels=1,
    down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
    up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
    block_out_channels=(16, 32),
    layers_per_block=1,
    latent_channels=2,
    norm_num_groups=8,
    sample_size=8,
    scaling_factor=1.0,
)
optimiser = torch.optim.AdamW(autoencoder.parameters(), lr=2e-3)
for _ in range(TRAINING_STEPS):
    x = 2.0 * train[torch.randint(len(train), (64,))] - 1.0
    posterior = autoencoder.encode(x).latent_dist
    image = autoencoder.decode(posterior.sample()).sample
    error = (image - x).square().flatten(1).sum(1)
    loss = (error + 0.1 * posterior.kl()).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
autoencoder.eval()
print(f"squared error of an image: {error.mean().item():.2f}")

# %% [markdown]
# ## Attach
#
# `from_diffusers` takes care of [-1, 1] and of the scaling and shift factors. The decoder has no likelihood, only an
# image; a Gaussian around it is assumed, its scale fitted, and every answer says so.

# %%
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it is read below
    vae = from_diffusers(autoencoder, train)
model = postmatch.attach(vae, train, steps=ATTACHING_STEPS)

# %% [markdown]
# ## Inpaint

# %%
observed = torch.ones(len(test), 1, 8, 8, dtype=torch.bool)
observed[..., :, 4:] = False
answer = model.given(test, observed)
filled = answer.impute()
print(answer.assumptions[0])


def psnr(image):
    error = (image - test)[~observed].square().mean()
    return -10.0 * error.log10().item()


average = train.mean(0).expand_as(test)
print(f"right halves: PSNR {psnr(filled):.1f} dB, of an average digit {psnr(average):.1f} dB")

# %% [markdown]
# ## A prior that knows digits
#
# The KL term was weak, so draws of the model's own prior are no digits. `fit_prior` learns what its latents look like.

# %%
better = postmatch.fit_prior(vae, train, steps=ATTACHING_STEPS)
gain = (better.log_evidence(test, num_samples=20) - vae.log_evidence(test, num_samples=20)).mean()
print(f"the bound on log p(x) rises by {gain.item():.1f} nats")
drawn = better.decode(better.prior().sample(torch.Size([8]))).mean  # eight digits that nobody wrote
