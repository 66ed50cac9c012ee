"""Fold an inference-time batch norm into the convolution or linear layer next to it.

    batch_norm(conv(x, W, b))             ->  conv(x, W', b')
    conv(batch_norm(x), W, b)             ->  conv(x, W', b')
    batch_norm(flatten(linear(x, W, b)))  ->  flatten(linear(x, W', b'))

Both are affine, channel by channel. What hands values on as they are (dropout in evaluation, for
one) may lie in between, and stays. The new weights are computed in float64 and rounded once, so
the outputs move by rounding only. The layer may be transposed, grouped or linear.
"""

from torch.fx import Node

from fxpasses.core import Editor, Facts, Numerics, Rewrite
from fxpasses.folding import norms
from fxpasses.folding.norms import NormSite


class FuseConvBn(Rewrite[NormSite]):
    """Fold batch norms into the convolutions and linear layers next to them.

    A norm behind a layer always can be folded. One in front of it only where the layer adds
    nothing at the borders that the norm does not see: no zero padding, or a norm without a shift.
    Folded parameters have the layer's dtype and no gradient history. Norms that measure their
    batch stay, and so do parameters that are to be trained.
    """

    name = "fuse_conv_bn"
    numerics = Numerics.ROUNDING
    trains = True
    legal_if = norms.LEGAL_IF
    worthwhile_if = norms.WORTHWHILE_IF
    remedies = norms.REMEDIES

    def match(self, node: Node, facts: Facts) -> NormSite | None:  # noqa: ARG002  the pattern alone
        return norms.norm_site_at(node)

    def why(self, site: NormSite) -> str:
        return norms.why_fold(site)

    def rewrite(self, site: NormSite, edit: Editor) -> None:
        norms.fold_norm(site, edit)
