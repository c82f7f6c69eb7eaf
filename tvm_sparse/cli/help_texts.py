"""What ``--help`` says of the whole and of each command: what it does, then examples."""

DESCRIPTION = """\
Compiles pruned convolutional networks into code that runs as fast as their zeros promise.

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
It begins with whether the model is worth compiling, predicted from its zeros and from what the log knows. Then, for
each convolution: how many weights are zero and in what structure, the arithmetic that is left, which schedules serve it
and why others do not, and what compiling with the tuning log would choose.

examples:
  tvm-sparse inspect model.onnx
  tvm-sparse inspect model.onnx --log a.jsonl --log b.jsonl --json
  tvm-sparse inspect model.onnx --batch 1,64
  tvm-sparse inspect model.onnx --patterns 0.9
""",
    "report": """\
One HTML file that needs no network: the verdict, where the time goes, what would help next, each layer with its kernel
and the reason, machine and versions. Of an .onnx or .pt2 file it says what inspect finds, without building anything:
times are predicted where no log has them. Of an artifact it says what that was made of, with the times that were
measured.

examples:
  tvm-sparse report model.onnx
  tvm-sparse report model.onnx -o model.html --batch 1,8
  tvm-sparse report model.sparse -o artifact.html
""",
    "tune": """\
Every candidate is built and run in a process of its own, compared with a float64 reference, and only then timed, in
turns with the dense kernel. Each trial is saved as it ends: stop with Ctrl-C, run the same command again to continue.
A layer whose last 24 sparse candidates gained less than 2% ends before --trials are made, but for --full.
Of several batch sizes, a later one first tries what was fastest at the others. Several GPUs, or the devices of a Ray
cluster, take a layer each at a time; without --target it is theirs.

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
The main job as one command. It starts from what your logs and the shipped ones know and from what is predicted, spends
the time on the layers from which the model gains most, and compiles. Ctrl-C or SIGTERM ends the measuring, whenever it
comes; the best so far is compiled, and the exit code is 130 or 143. Ctrl-C again gives that up. What was measured is
kept in your own log, or in the first of --log, so that the next run goes on from there. All known logs are
read too, after those that are named. Of several batch sizes the time goes to all. The result is compared with the
model as compile does it, and timed a few seconds in turns with dense kernels and, where installed, ONNX Runtime, or
torch.compile for a .pt2 file on a GPU; that is the verdict, which the artifact keeps.

examples:
  tvm-sparse optimize model.onnx -o model.sparse
  tvm-sparse optimize model.onnx -o model.sparse --minutes 60
  tvm-sparse optimize model.onnx -o model.sparse --minutes 0
  tvm-sparse optimize model.onnx -o model.sparse --batch 1,8
""",
    "compile": """\
Each convolution gets the fastest kernel that a log has verified, a predicted one where none knows it, or dense where
that is faster. Nothing is measured; a predicted kernel is verified. The artifact is a folder that runs without the
model file and without torch. With several batch sizes it takes any number of samples: a batch that it has, else the
next larger one padded, else the largest in turns. Model and result are run on a random input and compared, as far as
ONNX Runtime, or torch for a .pt2 file, is installed: about 1 s, which --no-compare, or TVM_SPARSE_COMPARE=0, saves. The
operator that makes a difference is named, and nothing is written; the exit code is then 5.

examples:
  tvm-sparse compile model.onnx -o model.sparse
  tvm-sparse compile model.onnx -o model.sparse --log my.jsonl --target cuda --allow-tf32
  tvm-sparse compile model.onnx -o model.sparse --batch 1,8,64
  tvm-sparse compile model.onnx -o model.sparse --input-shape x:1,3,320,640 --input-shape x:1,3,640,640
  tvm-sparse compile model.onnx -o model.sparse --dtype float16
""",
    "check": """\
The model is compiled as compile would, and run on random inputs and, with --input, on yours. Each convolution is held
against a float64 reference and its error bound; ONNX Runtime, or torch for a .pt2 file, runs the same network beside
it. The first layer that diverges is named, and the exit code is then 5. In half precision its outputs are also
compared with those of the same model in float32: differences, and of classifiers how often the class is the same.

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
A line for each: the artifact's SHA-256, which is that of its manifest and so of all it lists; each file; what libraries
call; files that do not belong there; inputs and outputs. The exit code is 5 where one of these is wrong. That finds
damage, and with --sha256 an artifact that was exchanged; it is no proof that the code does no harm.

examples:
  tvm-sparse verify model.sparse
  tvm-sparse verify model.sparse --sha256 DIGEST
""",
    "export": """\
The folder holds the model (model.plan and model.so; with several batch sizes a pair for each), a C library in source
that runs it, tvm_sparse_run, a program that uses it, main.c, with its CMakeLists.txt, and licences. Nothing else is
needed but the C library of the system: neither Python nor TVM. Outputs are those of Python, to the bit.
Where the name ends in .onnx, it is a model for ONNX Runtime instead, with the execution provider beside it.

examples:
  tvm-sparse export model.sparse -o fast.onnx
  tvm-sparse export model.sparse -o out
  cmake -S out -B out/build && cmake --build out/build
  out/build/main out/model.plan x.raw > y.raw
""",
    "bench": """\
A model is compiled with the log and again with dense kernels only, and both are run in turns with ONNX Runtime where
that is installed, or with torch.compile, of a .pt2 file on a GPU, each in a process of its own. Median and quartiles of
all rounds are shown, ratios of times of the same round, and the verdict. Of an artifact what it holds is timed, with
the largest batch that it has, beside the file that it was made of; alone where that is gone or was changed.

examples:
  tvm-sparse bench model.onnx --log my.jsonl
  tvm-sparse bench model.sparse --repeat 50
""",
    "show": """\
The kernel that compile would take for a layer, as text: the dense compute (te), the same with tiles, threads and
staging (scheduled), the multiply-adds that are left, with weights as constants (folded), and the source that a
compiler is given (cuda, or LLVM's IR, llvm). Without --layer it is the layer of which most is left to compute. Of a
long text a terminal shows the beginning. Nothing is run, and CUDA source needs neither a GPU nor a CUDA compiler.

examples:
  tvm-sparse show model.onnx
  tvm-sparse show model.onnx --layer layer1.0.conv1 --log my.jsonl
  tvm-sparse show model.onnx --layer layer1.0.conv1 --schedule folded_cpu --stage folded
  tvm-sparse show model.onnx --layer layer1.0.conv1 --schedule folded_cuda --target cuda > kernel.cu
""",
    "demo": """\
A residual network that reads handwritten digits, with 90% of its weights pruned away, is inspected, tuned, compiled,
checked on 450 held-out images, and timed against the network before pruning. Takes less than five minutes on two
cores; a second run finds its log and tunes nothing.

example:
  tvm-sparse demo
""",
    "doctor": """\
Versions, target, processor, GPU and compilers; whether the installed TVM saves JSON and builds and runs a kernel, each
in a process of its own; and what will and will not work here, with what to install.

example:
  tvm-sparse doctor --json > report.json
""",
    "logs": """\
stats     counts of records by status, schedule and machine, causes of failures, and the lines that are no records
best      the fastest verified record of each weight on each machine
page      what was decided for each layer and what it gained, as Markdown
merge     write the union of logs to a new file
distill   write the fastest verified records of each weight, schedule and machine to a new file
publish   add these to a folder with an index by machine and convolution, for any static web server; of the logs named
          behind it, or your own. Who names its path or URL as --log tries its records first; what is measured counts
validate  build the best records' kernels again and compare them with the reference; what this machine cannot run is
          scheduled only, and said to be. Weights are random ones of the same structure, or a model's own

examples:
  tvm-sparse logs stats my.jsonl
  tvm-sparse logs page my.jsonl > my.md
  tvm-sparse logs merge a.jsonl b.jsonl -o all.jsonl
  tvm-sparse logs distill all.jsonl --keep 3 -o best.jsonl.xz
  tvm-sparse logs publish public/logs my.jsonl
  tvm-sparse logs validate my.jsonl --model model.onnx --all
""",
}
