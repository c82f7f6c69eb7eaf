"""What ``--help`` says of the whole and of each command: what it does, then examples."""

DESCRIPTION = """\
Makes pruned convolutional networks fast: compiles them into code for their own zeros.

first steps:
  tvm-sparse demo                                  see it work on a small real network
  tvm-sparse inspect model.onnx                    what is sparse, and what could serve it
  tvm-sparse optimize model.onnx -o model.sparse   search kernels for five minutes, compile with the best
  tvm-sparse run model.sparse --input x.npy        run it

step by step:
  tvm-sparse tune model.onnx --trials 64           search kernels; results go to your own log
  tvm-sparse compile model.onnx -o model.sparse    use the fastest verified kernels, else dense
"""
EXIT_CODES = """\
exit codes: 0 done, 2 wrong usage, 3 bad input (model, log, weights), 4 build or run failed,
5 verification failed, 130 interrupted (finished work is saved, the command to continue is printed), 143 by SIGTERM
"""
# By command.
COMMANDS = {
    "inspect": """\
Says whether the model is worth compiling, predicted from its zeros and from what the log knows. Then it shows for
each convolution how many weights are zero and in what structure, the arithmetic that is left, which schedules serve
it and why others do not, and what compiling with the tuning log would choose.

examples:
  tvm-sparse inspect model.onnx
  tvm-sparse inspect model.onnx --log a.jsonl --log b.jsonl --json
  tvm-sparse inspect model.onnx --batch 1,64
  tvm-sparse inspect model.onnx --patterns 0.9
""",
    "report": """\
Writes one HTML file that needs no network: the verdict, where the time goes, what would help next, each layer with
its kernel and the reason, machine and versions. For an .onnx or .pt2 file it says what inspect finds, and builds
nothing: times are predicted if no log has them. For an artifact it says what that was made of, with the times that
were measured.

examples:
  tvm-sparse report model.onnx
  tvm-sparse report model.onnx -o model.html --batch 1,8
  tvm-sparse report model.sparse -o artifact.html
""",
    "tune": """\
Builds and runs every candidate in a process of its own, compares it with a float64 reference, and only then times it,
in turns with the dense kernel. Each trial is saved as it ends: stop with Ctrl-C, run the same command again to
continue. A layer ends before --trials are made if its last 24 sparse candidates gained less than 2%; --full makes
them all. With several batch sizes, a later one first tries what was fastest at the others. Several GPUs, or the
devices of a Ray cluster, take a layer each at a time; without --target the target is theirs.

examples:
  tvm-sparse tune model.onnx --dry-run
  tvm-sparse tune model.onnx --trials 64 -o my.jsonl
  tvm-sparse tune model.onnx --layers layer1.0.conv1,layer1.0.conv2 --trials 200
  tvm-sparse tune model.onnx --trials 1000 --seconds 300
  tvm-sparse tune model.onnx --batch 1,8,64
  tvm-sparse tune model.onnx --devices cuda:0,cuda:1
  tvm-sparse tune model.onnx --target cuda --ray auto
  tvm-sparse tune model.onnx --input-shape x:1,3,224,224 --threads 1
""",
    "optimize": """\
The main job as one command. It starts from predictions and from what your logs and the shipped ones know, spends the
time on the layers from which the model gains most, and compiles. Ctrl-C or SIGTERM ends the measuring at any moment:
the best so far is compiled, and the exit code is 130 or 143. A second Ctrl-C gives up. Measurements are kept in your
own log, or in the first of --log, and the next run goes on from there. All known logs are read, those that you name
first. Several batch sizes share the time. The result is compared with the model, as compile does it. Then it is timed
for a few seconds in turns with dense kernels and, if installed, ONNX Runtime, or with torch.compile for a .pt2 file
on a GPU. The artifact keeps that verdict.

examples:
  tvm-sparse optimize model.onnx -o model.sparse
  tvm-sparse optimize model.onnx -o model.sparse --minutes 60
  tvm-sparse optimize model.onnx -o model.sparse --minutes 0
  tvm-sparse optimize model.onnx -o model.sparse --batch 1,8
""",
    "compile": """\
Each convolution gets the fastest kernel that a log has verified. If no log knows it, it gets a predicted kernel,
which is verified here, or a dense one if that is faster. Nothing is measured. The artifact is a folder that runs
without the model file and without torch. With several batch sizes it takes any number of samples: a batch that it has
as it is, a smaller one padded to the next, a larger one in turns. Model and result run on a random input and are
compared, if ONNX Runtime is installed, or torch for a .pt2 file. That takes about 1 s; --no-compare, or
TVM_SPARSE_COMPARE=0, saves it. If they differ, the operator is named, nothing is written, and the exit code is 5.

examples:
  tvm-sparse compile model.onnx -o model.sparse
  tvm-sparse compile model.onnx -o model.sparse --log my.jsonl --target cuda --allow-tf32
  tvm-sparse compile model.onnx -o model.sparse --batch 1,8,64
  tvm-sparse compile model.onnx -o model.sparse --input-shape x:1,3,320,640 --input-shape x:1,3,640,640
  tvm-sparse compile model.onnx -o model.sparse --dtype float16
""",
    "check": """\
Compiles the model as compile would, and runs it on random inputs and, with --input, on yours. Each convolution is
compared with a float64 reference and its error bound; ONNX Runtime, or torch for a .pt2 file, runs the same network
beside it. The first layer that diverges is named, and the exit code is then 5. In half precision outputs are also
compared with those of the model in float32: how far they differ, and how often a classifier gives the same class.

examples:
  tvm-sparse check model.onnx
  tvm-sparse check model.onnx --dtype float16 --input x.npy
  tvm-sparse check model.onnx --log my.jsonl --input x.npy
""",
    "run": """\
An artifact is code: run only what you trust. One that others could change needs --trust.

examples:
  tvm-sparse run model.sparse --input x.npy -o y.npz
  tvm-sparse run model.sparse --input inputs.npz --json
""",
    "verify": """\
Prints a line for each of these: the artifact's SHA-256, which covers its manifest and so every file in it; each file;
what libraries call; files that do not belong there; inputs and outputs. The exit code is 5 if one of them is wrong.
That finds damage, and with --sha256 an artifact that was exchanged. It does not prove that the code does no harm.

examples:
  tvm-sparse verify model.sparse
  tvm-sparse verify model.sparse --sha256 DIGEST
""",
    "export": """\
The folder holds the model (model.plan and model.so; with several batch sizes a pair for each), a C library in source
that runs it (tvm_sparse_run), a program that uses the library (main.c), its CMakeLists.txt, and licences. It needs the
system's C library, for a GPU NVIDIA's driver and, where a layer uses it, cuDNN 9, and nothing else, neither Python nor
TVM. Outputs are those of Python, to the bit.
If the name ends in .onnx, it is a model for ONNX Runtime instead, with the execution provider beside it.

examples:
  tvm-sparse export model.sparse -o fast.onnx
  tvm-sparse export model.sparse -o out
  cmake -S out -B out/build && cmake --build out/build
  out/build/main out/model.plan x.raw > y.raw
""",
    "bench": """\
Compiles a model with the log and again with dense kernels only, and runs both in turns with ONNX Runtime, if
installed, or with torch.compile for a .pt2 file on a GPU, each in a process of its own. It shows the median and
quartiles of all rounds, ratios of times of the same round, and the verdict. An artifact is timed with its largest
batch, beside the file that it was made of; alone if that file is gone or was changed.

examples:
  tvm-sparse bench model.onnx --log my.jsonl
  tvm-sparse bench model.sparse --repeat 50
""",
    "show": """\
Prints the kernel that compile would take for a layer: the dense compute (te), the same with tiles, threads and
staging (scheduled), the multiply-adds that are left, with weights as constants (folded), and the source that a
compiler is given (cuda, or LLVM's IR, llvm). Without --layer it is the layer with most arithmetic left. A terminal
shows the beginning of a long text. Nothing is run, and CUDA source needs neither a GPU nor a CUDA compiler.

examples:
  tvm-sparse show model.onnx
  tvm-sparse show model.onnx --layer layer1.0.conv1 --log my.jsonl
  tvm-sparse show model.onnx --layer layer1.0.conv1 --schedule folded_cpu --stage folded
  tvm-sparse show model.onnx --layer layer1.0.conv1 --schedule folded_cuda --target cuda > kernel.cu
""",
    "demo": """\
Inspects, tunes and compiles a residual network that reads handwritten digits, with 90% of its weights pruned away,
checks it on 450 held-out images, and times it against the network before pruning. It takes less than five minutes on
two cores; a second run finds its log and tunes nothing.

example:
  tvm-sparse demo
""",
    "doctor": """\
Shows versions, target, processor, GPU and compilers; whether the installed TVM saves JSON and builds and runs a
kernel, each in a process of its own; what works here and what does not, and what to install.

example:
  tvm-sparse doctor --json > report.json
""",
    "logs": """\
stats     counts of records by status, schedule and machine, causes of failures, and the lines that are no records
best      the fastest verified record of each weight on each machine
page      what was decided for each layer and what it gained, as Markdown
merge     write the union of logs to a new file
distill   write the fastest verified records of each weight, schedule and machine to a new file
publish   add these to a folder with an index by machine and convolution, for any static web server. They come from the
          logs named behind it, or your own. tune and optimize with its path or URL as --log try these records first
validate  build the best records' kernels again and compare them with the reference. Those that this machine cannot
          run are scheduled only. Weights are random ones of the same structure, or a model's own

examples:
  tvm-sparse logs stats my.jsonl
  tvm-sparse logs page my.jsonl > my.md
  tvm-sparse logs merge a.jsonl b.jsonl -o all.jsonl
  tvm-sparse logs distill all.jsonl --keep 3 -o best.jsonl.xz
  tvm-sparse logs publish public/logs my.jsonl
  tvm-sparse logs validate my.jsonl --model model.onnx --all
""",
}
