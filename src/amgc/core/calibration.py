"""Calibrated probabilities, from the class statistics alone.

The softmax of the L_DB scores is not calibrated. On true Gaussians it is underconfident, because the optimum is half of LDA. On
real features with few samples it is far too confident, because weights and statistics come from the same samples. No samples
are stored, so there are no held-out data. Instead, the temperature minimises the log-loss of leave-one-out scores
(`amgc.core.within`). It depends on the statistics only: the order of classes, batches and merges does not matter.
"""

from __future__ import annotations

import math

from amgc.core.solver import Head
from amgc.core.typical import half_scores
from amgc.core.within import Within, sharpness

# Draws from Gaussians overlap less than real classes. On training images of photographs, CIFAR-100 and digits, with 20 and 50
# samples a class, the best temperature of held-out samples was 1.1 to 1.7 times that of the draws, 1.33 on average. A little
# less has the smaller calibration error there, averaged over 5 to 50 samples a class: 0.064 instead of 0.066 with 1.4.
REAL = 1.25
# Without a second sample of any class nothing is known about how samples vary. Then a class mean's lead over the other classes
# is this many temperatures: about that of photographs with one or two samples a class, between those of CIFAR-100 and digits.
UNKNOWN_LEAD = 6.0
# With few samples, draws vary too much between choices of the samples. The lead of class means hardly does: held out, the best
# temperature is about the lead / 8 for photographs, more for classes that overlap, less for digits. How much classes overlap
# shows in the part of the lead that is noise: leaving a sample out takes it away. In units of one sample, it is about 7 for
# photographs. It varies between choices, too, so a small power of it is best. On held-out training images of seven kinds, 5 to
# 45 samples a class, the calibration error is 0.049 on average; it was 0.052 with 7.5 and 0.4, and 100 below in place of 400.
LEAD, NOISE, POWER = 8.0, 7.0, 0.2
# Squared degrees of freedom a class at which that counts as much as the unknown lead, and at which draws count as much as both:
# fewer if they ask for a higher temperature, because the lead of labels that mean nothing is large, too.
TRUSTED_NOISE, TRUSTED_ABOVE, TRUSTED_BELOW = 4.0, 4.0, 400.0
# With a ridge that a background suggests, the leads are larger: by 1.0 to 1.3 on held-out training images, 5 a class.
KNOWN_LEAD = 1.2
# Noisy sums have no samples that could be left out. Their statistics take the noise into account, and one temperature does for
# all: of 1, 1.5, 2 and 3, held-out training photographs and CIFAR-100, 10 and 40 samples a class, ε from 1 to 8, have the
# smallest calibration error with this one, 0.14 on average.
NOISY = 2.0
LEAST, LITTLE = 0.02, 0.3  # bounds of the part of the lead that is not noise, and of the noise


def temperature(within: Within, head: Head, known: float = 0.0) -> float:
    """Return the temperature that divides the scores of `head` before the softmax.

    known : the share of the ridge that a background suggests, from 0 to 1.
    """
    classes = len(within.count)
    if classes < 2:
        return 1.0
    own = half_scores(within.inner.diagonal(), within.inner.diagonal(), within.keep)  # of each mean for its class
    lengths = (within.keep.square() * within.inner.diagonal()).sum()
    total = 0.5 * (within.inner @ within.keep - 0.5 * lengths)  # the sum of its scores for all classes, without a K × K table
    lead = float((own - (total - own) / (classes - 1)).mean())
    if not lead > 0:  # all means are equal
        return 1.0
    usual = lead / KNOWN_LEAD**known
    found = math.log(usual / UNKNOWN_LEAD)
    if within.chosen:
        leads = within.leads
        count, freedom = float(within.count.mean()), float(within.count.mean()) - 1
        kept = -float(leads.sum(1).mean()) / (classes - 1) / lead  # the part of the lead that samples have that are left out
        noise = count * (1 / max(kept, LEAST) - 1)
        steady = math.log(usual / LEAD) + POWER * math.log(max(noise, LITTLE) / NOISE)
        found += (steady - found) * freedom**2 / (freedom**2 + TRUSTED_NOISE)
        more = math.log(REAL * lead / sharpness(leads / lead)) - found
        found += more * freedom**2 / (freedom**2 + (TRUSTED_ABOVE if more > 0 else TRUSTED_BELOW))
    return math.exp(found) * relative_scale(within, head)


def relative_scale(within: Within, head: Head) -> float:
    """Return the length of the head's weights relative to half of LDA's."""
    drawn = within.keep.to(head.weight)[:, None] * within.mean.to(head.weight)
    size = float((within.keep.square() * within.inner.diagonal()).sum())
    return max(2 * float((head.weight[within.order.to(head.weight.device)] * drawn).sum()) / max(size, 1e-300), 1e-6)
