"""Contracts on masks: later tokens, padding, other rows of a batch, mask layouts."""

from collections.abc import Iterator

from attnkit.attention.mask import Mask
from attnkit.contract.subject import EXACT, Broken, Subject, close, everything, gradients, inputs, up_to

LENGTHS = (1, 2, 7, 64, 65, 513)
PADS = 5


def future(subject: Subject) -> Iterator[float]:
    """Check that changes of later tokens do not change outputs, and that outputs have no gradient at later tokens."""
    for length in LENGTHS:
        x = inputs(1, length)
        general = Mask.of(everything(1, length), length, causal=True)
        for mask in (general, Mask.packed(length, x.device, causal=True)):
            # the last visible token is inside a block of any even size, not at its border
            for cut in {length * 2 // 5} | ({length - 2} if 2 < length < 100 else set()):
                where = f"length {length}, layout {mask.layout}, after token {cut}"
                after = cut + 1
                leaf = x.clone().requires_grad_()
                y = subject.layer(leaf, mask).y[:, :after]
                (grad,) = gradients(y, [leaf])
                assert grad is not None
                largest = grad.abs().max().item()
                if largest == 0 and after == 1 and not subject.weights(x, mask)[:, :, 0].any():
                    continue  # the first token has no visible keys
                if largest == 0:
                    raise Broken(f"{where}: the answers do not depend on any token")
                if after == length:
                    continue
                leak = grad[:, after:].abs().max().item() / largest
                if not leak <= EXACT:
                    text = f"the future has {leak:.2g} of the largest gradient, 0 is right"
                    raise Broken(f"{where}: {text}", leak)
                changed = x.clone()
                changed[:, after:] = inputs(1, length - after) * 50
                yield leak
                yield close(subject.layer(changed, mask).y[:, :after], y, where)


def padding(subject: Subject) -> Iterator[float]:
    """Compare rows with random padding on the left, on the right and in between to rows without padding."""
    for length in (1, 7, 65):
        x, valid = inputs(3, length), everything(3, length + PADS)
        for row, first in enumerate((0, length, max(1, length // 2))):
            valid[row, first : first + PADS] = False
        longer = inputs(3, length + PADS) * 50
        longer[valid] = x.flatten(0, 1)
        both = []
        for rows, real in ((x, everything(3, length)), (longer, valid)):
            leaf = rows.clone().requires_grad_()
            y = subject.real_outputs(subject.layer, leaf, real)
            (gradient,) = gradients(y, [leaf])
            assert gradient is not None
            both.append((y.detach(), gradient))
        (plain, grad), (padded, spread) = both
        where = f"length {length} and {PADS} pads"
        yield close(padded, plain, where)
        of_pads = spread[~valid]
        if not (of_pads == 0).all():
            raise Broken(f"{where}: pads have a gradient", of_pads.abs().max().item())
        yield close(spread[valid], grad.flatten(0, 1), f"{where}: gradient")


def batch(subject: Subject) -> Iterator[float]:
    """Compare a batch of rows of different lengths to each row alone."""
    for length in (9, 70):
        x, valid = inputs(3, length), up_to(length, length - 4, length)
        valid[2, :3] = False
        queries = inputs(3, 4)
        together = subject.answer(subject.layer, x, valid, queries=queries)
        for row in range(3):
            one = slice(row, row + 1)
            alone = subject.answer(subject.layer, x[one], valid[one], queries=queries[one])
            got = subject.real_rows(together[one], valid[one])
            expected = subject.real_rows(alone, valid[one])
            yield close(got, expected, f"length {length}, row {row}")


def layouts(subject: Subject) -> Iterator[float]:
    """Compare masks with the layouts `packed` and `right` to the general mask of the same rows."""
    for length in (11, 100):
        x, valid = inputs(3, length), up_to(length, length // 3, length - 2)
        promised = Mask.packed(length, x.device, causal=subject.causal)
        masks = [(promised, everything(3, length))]
        masks.append((promised if subject.causal else Mask.right(valid), valid))
        for mask, real in masks:
            general = subject.answer(subject.layer, x, real)[real]
            got = subject.answer(subject.layer, x, real, mask)[real]
            yield close(got, general, f"length {length}, layout {mask.layout}")
