"""What docs/images.md says in words, whatever the results are."""

NAMES_OF = {
    "conv": "plain VAE",
    "vqvae": "VQ-VAE",
    "vdvae": "VDVAE",
    "vdvae-paper": "VDVAE, the paper's levels",
    "vaeac": "VAEAC",
}
INTRODUCTION = """# Filling holes in images

Made by `benchmarks/render_images.py` from `results/inpainting-*.json`,
`results/inpainting_beside.jsonl`, `results/hole_kinds.jsonl`, `results/partial_cost.jsonl` and
`results/performance.jsonl`; do not edit.

Models of MNIST and Omniglot are shipped; `postmatch models` lists them. They fill images of 28 x 28
pixels in grey, white strokes on black:

    postmatch inpaint digit.png --mask hole.png --model mnist-vdvae -n 6 -o filled.png

```python
import postmatch
from postmatch.image_files import read_image, read_masks

model = postmatch.pretrained("mnist-vdvae")
x = read_image("digit.png", channels=1)[0][None] / 255.0  # (1, 1, 28, 28), in [0, 1]
observed = read_masks("hole.png")  # (1, 1, 28, 28), False where the picture is white
answer = model.given(x, observed)
draws = answer.draws(6)  # (6, 1, 1, 28, 28): six ways to fill the hole
best = answer.impute()  # (1, 1, 28, 28): the least squared error
```
"""
METHOD = """
A VAE of complete images gets a second encoder, which sees a part of an image and learns to tell z
from that. The VAE is trained as ever; no gradient of the match reaches it, unless one asks for that
(`train_target=True`). To fill a hole, z is drawn given what is seen, and decoded.
"""
ABOUT = {
    "conv": """has one latent vector, a Gaussian given a complete image. Given a part, each entry
  is a mixture of Gaussians that depends on the entries before it.""",
    "vqvae": """has a grid of codes, one for each square of 2 x 2 pixels, each made of its square
  alone. (The paper's, of 4 x 4, see far beyond it.) Given a part of the image, a PixelCNN draws
  them one by one, told by a second network of all that is seen, near and far. The VQ-VAE is trained
  first; then, with it as it is, this posterior, and beside it a prior over the codes. As long as it
  learns, the second network guesses hidden pixels, too. Pixels are Gaussian, but for those of
  Omniglot, which have 256 levels as they have in VDVAE and VAEAC.""",
    "vdvae": """has a hierarchy of latent images, from one pixel upwards, matched level by level in
  one pass. Ours has fewer levels of the full size than the paper's, and of faces only one of
  64 x 64. As long as it learns faces, its partial encoder guesses hidden pixels, too. That encoder
  makes an image smaller and smaller. A way back to larger sizes, so that levels of these are told
  of the whole image, was worth .09 dB after three minutes (`results/way_back.jsonl`: one training
  each). Four long trainings with it, none of which had as many steps together, stayed .25 to .4 dB
  below the best without, so it was taken out.""",
    "vdvae-paper": "has as many levels of each size as the paper says.",
    "vaeac": """is the peer: a VAE made for holes from the start, so that there is nothing to match.
  It has about as many parameters as our VDVAE, and its batches, rates and steps, with twice the
  rate of orthogonal ones on faces. The weight of its divergence rises at first.""",
}
STEPS = """
Matrices, those of convolutions too, take orthogonal steps (Muon). At first they learn far faster
than those of Adam: a VDVAE that was trained for 2.2 minutes, beside four others, filled 2,000
held-out digits at 20.10 dB, at 19.04 with a rate of .002 in place of .005, and at 18.96 after as
many minutes of Adam. Where a trained one went on for 6.6 minutes with either, digits were filled
.05 dB better by the first, and the loss was a little worse (`results/orthogonal_steps.jsonl`). A
VQ-VAE gains little by them, and most by codes that see little. Of codes that see 20 x 20 pixels one
pixel changes many, so that a hole makes those around it uncertain; codes of 2 x 2 are certain
wherever these are seen. In trainings side by side they were worth .5 dB on Omniglot, .3 on MNIST
and, of 4 x 4, .1 on faces; guessing pixels was worth .2, and a larger second network about .15
(`results/codes.jsonl`: one training each). More codes show pixels more exactly and are harder to
tell: after three minutes, which are fewer steps of more codes, 4,096 in place of 512 filled faces
1.6 dB worse, and 512 in place of 128, which had a further layer before their logits, digits .1 dB.
"""
JUDGED = """
Masks are the paper's: single pixels, halves, squares and rectangles, of faces irregular patterns
and parts such as the eyes, too. About four pixels in ten are hidden. A figure stands with its
standard deviation over five draws of masks, which says nothing of other trainings. Minutes are
those of a clock, and most models shared the GPU with others meanwhile, which their steps show. More
is better throughout.

- **PSNR**, in decibels, is over all pixels, those observed included. That of the mean of ten
  fillings is what the paper reports. That of single draws is lower, unless all draws are the same.
- A filling is what the paper takes for one: z is drawn, and pixels are the decoder's means. Draws
  that are what the truth might be have twice the squared error of their mean (3 dB), and the mean
  of ten has 1.1 times that error (.4 dB). A model whose z tells nothing pays neither: its posterior
  has collapsed, all its fillings are one blurred mean. So there are tables of **pixels drawn,
  too**, of the same draws of z. These are draws from p(x_u given x_o), and no collapse is of use.
- **Precision and recall** (Sajjadi and others, 2018) compare the test images with a filling of
  each, by features of a small classifier: how much of what is drawn looks like an image, and how
  much of what images look like is drawn. What is observed is true, which raises both.
- An image without any error has no PSNR and is left out, as in the paper. One with hardly any
  counts for much: the holes of some drawings have no stroke in them.
- **Quoted** rows are the paper's. Its precision and recall are by the features of another network,
  so compare them within the quoted rows only. Its VDVAEs of 28 x 28 pixels took 500,000 steps. Its
  row of VAEAC is itself quoted, from a paper that padded images to 32 x 32 pixels. Which drawings
  its Omniglot has is not known, and PSNR depends on how they were made small.
"""
CLASSIFIERS = """
Judged by another classifier than the rest, trained alike: {names}. So the third digit of precision
and recall says little.
"""
LONGER = """
VAEAC had fewer minutes than {names}.
"""
BEHIND = """
VAEAC is ahead {where}.
"""
BEHIND_DRAWN = """
With pixels drawn, VAEAC is ahead {where}.
"""
ALIKE = """
All ten fillings of an image by {names} are one, to what the eye can see: z tells nothing.
"""
UNDRAWN = """
No pixels were drawn of {names}.{others}
"""
UNDRAWN_BUT = " Those of other trainings, below, were."
OTHERS = """
Trained other times, once each.
"""
OTHER_CLASSIFIERS = """Figures in parentheses are by another classifier than most of the
models above.
"""
CHANGES = {
    "turned": "drawings turned and mirrored in eight ways",
    "guess": "no guesses, levels of 64 x 64, half of the minutes alone",
    "fine_width": "no layers of the size of the images in the second network",
    "back": "a way back in the partial encoder, more than half of the minutes alone",
    "back_alone": "a way back in the partial encoder, which had the second half to itself",
    "back_together": "a way back in the partial encoder, trained together to the end",
    "context_dropout": "half the minutes, at a lower priority than others on the GPU; .05 of the "
    "features dropped in the second network",
    "alone": "guesses of hidden pixels, the partial encoder alone for the second half",
    "cells": "a way back in the partial encoder, which had wider blocks and the last two fifths to "
    "itself; squares of 2 x 2 pixels as one; some steps were not finite, so that rates were halved",
    "guesses": "guesses of hidden pixels, one level of 28 x 28",
}
SHOWN = {
    "inpainting": "test images, what is seen, the encoder of zeros, six draws",
    "joint": "images drawn given nothing, and from the prior",
}
GALLERIES = {
    "inpainting": """
## How they look

Test images, evenly spaced in the order of their classes and not chosen otherwise; what is seen of
them; what the VAE's own encoder makes of zeros in the holes, which is all that a VAE without a
partial posterior can do (the paper's appendix E); six draws. All models have the same images and
masks.
""",
    "joint": """
## Images from nothing

Where nothing is seen, p(x_u given x_o) is p(x). On the left of each picture z is drawn given an
image of which nothing is seen (the paper's last figure), on the right from the VAE's own prior. As
it learns, the second encoder of a VQ-VAE is given nothing once in twenty times; that of a VDVAE has
to do with the masks above. No image was chosen.
""",
}
LEFT_OPEN = """
## What a part leaves open

The plain VAE's latent space (the paper's section 5.1), by `postmatch reproduce mnist-latent`. Every
dot is a test image, by digit. Black dots are draws of z given the part of an image that stands
above; below is what some of them stand for. What fits several digits lies with several, and not
between them.
"""
LATENT = {
    "mnist-latent": """All digits, the map by UMAP. What is seen of the 8 on the right is part of an
8, or of a 2, seldom of a 3 and hardly ever of a 5; more of it leaves the 8.""",
    "mnist-latent-plane": """A z of length 2 as it is, for 3, 5 and 8 alone, with `--plane`: halves
of a 3. An 8 might have its right half as well, and a 5 might not; a 5 its lower half, and an 8
seldom.
The 3 was chosen for that. Here no gradient of the match reaches the VAE.""",
}
AGAIN = """
## How to have them again

The first commands below train and judge each model, in the time that it had on the hardware above:
learning rates fall in step with that time, and how many steps fit into it is not the same twice.
`benchmarks/inpainting_beside.py` trains several of them side by side, as most of these were.
`POSTMATCH_DATA` names the folder with the images. The last two commands make galleries, from the
shipped models, and this page. Latent spaces and the other tables are made by what is named with
them.
"""
CHANGED = """
Their settings have changed since: {names}.
`results/` has those that they were trained with.
"""
