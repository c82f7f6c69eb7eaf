"""Write ONNX models of well-known shapes with random pruned weights; see `benchmarks.networks`.

python scripts/models/make_models.py resnet50 --density 0.1 --batch 1 --seed 0 -o resnet50.onnx
"""

import argparse
from pathlib import Path

import onnx

from benchmarks.networks import MODELS, Options


def main() -> None:
    """Write the model that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("-o", "--output", type=Path, help="file to write (default: MODEL.onnx)")
    parser.add_argument("--density", type=float, help="non-zero weights, 0 to 1 (default: %(default)s)")
    parser.add_argument("--batch", type=int, help="images a run (default: %(default)s)")
    parser.add_argument("--image", type=int, help="height and width, pixels (default: %(default)s)")
    parser.add_argument("--width", type=float, help="multiplies the channels (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the weights (default: %(default)s)")
    parser.add_argument(
        "--classifier",
        choices=("small", "full", "none"),
        help="small: mean over the pixels and one fully connected layer, for VGG16 too, whose own weigh 500 MB; full: "
        "VGG16's own, pruned; none: the feature maps are the output (default: %(default)s)",
    )
    parser.add_argument("--prune-first", action="store_true", help="prune the first convolution too")
    parser.add_argument("--prune-depthwise", action="store_true", help="prune depthwise convolutions too")
    parser.set_defaults(**vars(Options()))
    arguments = vars(parser.parse_args())
    name, output = arguments.pop("model"), arguments.pop("output")
    if not 0 <= arguments["density"] <= 1:
        parser.error(f"--density is {arguments['density']}; allowed: 0 to 1")
    output = output or Path(f"{name}.onnx")
    onnx.save(MODELS[name](Options(**arguments)), output)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
