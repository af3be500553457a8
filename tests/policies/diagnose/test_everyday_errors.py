"""Everyday errors of libraries and tools, one line each: is another try worth it, and does no node pay for it for good?"""

from __future__ import annotations

import pytest

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import Blame, Piece, RankEnd, Retriable, Verdict
from ftslurm.policies.diagnose import Facts, diagnose

BOOK = load_pattern_book(()).of_ranks()
TRACE = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 3, in <module>\n    main()\n'
# Exceptions over something that passes.
PASSING = (
    'ConnectionError: [Errno 110] Connection timed out',
    'ssl.SSLEOFError: EOF occurred in violation of protocol (_ssl.c:2396)',
    "requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(0 bytes read)', IncompleteRead(0 bytes read))",
    'grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:',
    "OSError: [Errno 5] Input/output error: '/data/x'",
    "OSError: [Errno 107] Transport endpoint is not connected: '/data/x'",
    'OSError: [Errno 103] Software caused connection abort',
    'BlockingIOError: [Errno 11] Resource temporarily unavailable',
    'huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url: https://huggingface.co/api',
    "urllib3.exceptions.ProtocolError: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
    'sqlite3.OperationalError: database is locked',
    'socket.gaierror: [Errno -3] Temporary failure in name resolution',
    "mlflow.exceptions.MlflowException: API request to https://m/api failed with exception HTTPSConnectionPool(host='m', port=443): Max retries exceeded with url: /api",
    'ray.exceptions.ObjectLostError: Failed to retrieve object 00ff. All copies are lost due to node failure.',
    "ray.exceptions.OwnerDiedError: Failed to retrieve object 00ff. The object's owner has exited.",
    'ray.exceptions.NodeDiedError: Task failed because the node it was running on is dead or unavailable.',
    'ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.',
    'tensorflow.python.framework.errors_impl.AbortedError: RecvRecord aborted',
    'tensorflow.python.framework.errors_impl.UnavailableError: Socket closed',
    'tensorflow.python.framework.errors_impl.CancelledError: [_Derived_]RecvAsync is cancelled.',
    "subprocess.TimeoutExpired: Command '['nvidia-smi']' timed out after 10 seconds",
    "RuntimeError: can't start new thread",
    'asyncio.exceptions.TimeoutError',
    'concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running or pending.',
    'aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected',
    'aiohttp.client_exceptions.ClientPayloadError: Response payload is not completed',
    'google.api_core.exceptions.ServiceUnavailable: 503 failed to connect to all addresses',
    'google.api_core.exceptions.TooManyRequests: 429 Quota exceeded for quota metric',
    "google.auth.exceptions.TransportError: ('Failed to retrieve http://metadata.google.internal', 'timed out')",
    'azure.core.exceptions.ServiceResponseError: Connection aborted.',
    'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3.amazonaws.com/b"',
    'botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the PutObject operation (reached max retries: 4): Please reduce your request rate.',
    'botocore.exceptions.ResponseStreamingError: An error occurred while reading from response stream',
    'redis.exceptions.ConnectionError: Error 111 connecting to 10.0.0.1:6379. Connection refused.',
    'etcd3.exceptions.ConnectionFailedError',
    'pymongo.errors.ServerSelectionTimeoutError: 10.0.0.1:27017: timed out',
    'paramiko.ssh_exception.SSHException: Error reading SSH protocol banner',
    "filelock._error.Timeout: The file lock '/data/.lock' could not be acquired.",
    'fsspec.exceptions.FSTimeoutError',
    'zmq.error.Again: Resource temporarily unavailable',
    'RuntimeError: CUDA error: unspecified launch failure',
    'RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR',
    'RuntimeError: NCCL Error 2: unhandled system error',
    'RuntimeError: CUDA error: the launch timed out and was terminated',
    'RuntimeError: HIP error: unspecified launch failure',
    'urllib.error.URLError: <urlopen error [Errno 101] Network is unreachable>',
    'http.client.IncompleteRead: IncompleteRead(5443584 bytes read, 7221 more expected)',
    'http.client.RemoteDisconnected: Remote end closed connection without response',
    'OSError: Consistency check failed: file should be of size 9976576152 but has size 5120 (model-00001.safetensors).',
    "OSError: [Errno 112] Host is down: '/mnt/x'",
    "OSError: [Errno 121] Remote I/O error: '/mnt/x'",
    'OSError: [Errno 116] Stale file handle',
    "TimeoutError: [Errno 110] Connection timed out: '/mnt/nfs/x'",
)  # fmt: skip
# Exceptions that the same start meets again.
LASTING = (
    'requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://x',
    'botocore.exceptions.NoCredentialsError: Unable to locate credentials',
    'botocore.exceptions.ClientError: An error occurred (403) when calling the HeadObject operation: Forbidden',
    'botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey) when calling the GetObject operation: The specified key does not exist.',
    'google.api_core.exceptions.NotFound: 404 GET https://storage.googleapis.com/b: bucket does not exist',
    'google.api_core.exceptions.Forbidden: 403 user does not have storage.objects.get access',
    "PermissionError: [Errno 13] Permission denied: '/data/x'",
    "IsADirectoryError: [Errno 21] Is a directory: '/data'",
    "NotADirectoryError: [Errno 20] Not a directory: '/data/x'",
    'OSError: [Errno 28] No space left on device',
    'OSError: [Errno 122] Disk quota exceeded',
    'OSError: [Errno 36] File name too long',
    'OSError: [Errno 7] Argument list too long',
    "OSError: [Errno 8] Exec format error: './x'",
    'OSError: [Errno 27] File too large',
    'RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory',
    '_pickle.UnpicklingError: pickle data was truncated',
    'EOFError: Ran out of input',
    'zlib.error: Error -3 while decompressing data: invalid stored block lengths',
    'json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)',
    "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    "pyarrow.lib.ArrowInvalid: Could not open Parquet input source '<Buffer>': Parquet magic bytes not found in footer",
    "PIL.UnidentifiedImageError: cannot identify image file 'x.jpg'",
    'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use.',
    'RuntimeError: CUDA error: device-side assert triggered',
    'RuntimeError: CUDA error: no kernel image is available for execution on the device',
    'RuntimeError: CUDA error: invalid device ordinal',
    'RuntimeError: CUDA error: invalid configuration argument',
    'ImportError: libcudart.so.12: cannot open shared object file: No such file or directory',
    "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found",
    'pydantic_core._pydantic_core.ValidationError: 1 validation error for Config',
    'yaml.scanner.ScannerError: mapping values are not allowed here',
    'hydra.errors.ConfigCompositionException',
    'omegaconf.errors.MissingMandatoryValue: Missing mandatory value: model.path',
    'MemoryError',
    'numpy._core._exceptions._ArrayMemoryError: Unable to allocate 300. GiB for an array',
    'OSError: [Errno 24] Too many open files',
    'wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])',
    'ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.',
    'ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.',
    "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (1024).",
    'RuntimeError: Triton Error [CUDA]: device kernel image is invalid',
    'tensorflow.python.framework.errors_impl.NotFoundError: Key beta1_power not found in checkpoint',
    'tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[256]',
    'tensorflow.python.framework.errors_impl.DataLossError: corrupted record at 1234',
    'tensorflow.python.framework.errors_impl.InvalidArgumentError: Incompatible shapes',
    'tensorflow.python.framework.errors_impl.FailedPreconditionError: Error while reading resource variable',
    'AssertionError: num_heads must be divisible by tensor parallel size',
    'RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.',
    'RuntimeError: The size of tensor a (4) must match the size of tensor b (5) at non-singleton dimension 1',
    'RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x5 and 6x7)',
    'RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn',
    'RuntimeError: Error compiling objects for extension',
    'RuntimeError: Ninja is required to load C++ extensions',
    'torch._dynamo.exc.Unsupported: call_function BuiltinVariable(len)',
    'torch._inductor.exc.LoweringException: AssertionError',
    'jaxlib.xla_extension.XlaRuntimeError: INVALID_ARGUMENT: Argument does not match',
    'huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. Repository Not Found for url: https://huggingface.co/x',
    'huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo',
    'huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the specified revision on the local disk and outgoing traffic has been disabled.',
    "OSError: meta-llama/X is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
    "datasets.exceptions.DatasetNotFoundError: Dataset 'x' doesn't exist on the Hub or cannot be accessed.",
    'ValueError: Tokenizer class X does not exist or is not currently imported.',
    "KeyError: 'connection timeout'",
    'git.exc.InvalidGitRepositoryError: /home/u',
    'click.exceptions.UsageError: No such option: --foo',
    'sentencepiece: RuntimeError: Internal: could not parse ModelProto from x.model',
)  # fmt: skip
# The same of tools, which print a line and end.
PASSING_LINES = (
    'docker: Error response from daemon: toomanyrequests: You have reached your pull rate limit.',
    'curl: (28) Operation timed out after 30001 milliseconds with 0 bytes received',
    'curl: (6) Could not resolve host: registry',
    "wget: unable to resolve host address 'x'",
    'ssh: connect to host n2 port 22: Connection refused',
    'ssh: connect to host n2 port 22: Connection timed out',
    'rsync error: error in rsync protocol data stream (code 12) at io.c(235)',
    'rsync: connection unexpectedly closed (0 bytes received so far) [sender]',
    "fatal: unable to access 'https://github.com/x/': Could not resolve host: github.com",
    'mount.nfs: Connection timed out',
    "cp: error reading 'x': Input/output error",
    'slurm_load_jobs error: Unable to contact slurm controller (connect failure)',
    'srun: error: Task launch for StepId=1.0 failed on node n2: Communication connection failure',
    'sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received',
    'License checkout failed: Licensed number of users already reached.',
    'aws: fatal error: Read timeout on endpoint URL: "https://s3"',
    'gsutil: ServiceException: 503 Backend Error',
    'ORTE has lost communication with a remote daemon.',
    'mlx5: n2: got completion with error:',
)  # fmt: skip
LASTING_LINES = (
    'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
    'srun: error: Unable to create step for job 1: Memory required by task is not available',
    'srun: error: Invalid generic resource (gres) specification',
    "./a.out: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by ./a.out)",
    'bash: line 1: python: command not found',
    'There are not enough slots available in the system to satisfy the 8 slots',
    'forrtl: severe (174): SIGSEGV, segmentation fault occurred',
    'At line 12 of file x.f90 Fortran runtime error: End of file',
    "Error in library(foo) : there is no package called 'foo'",
    'ERROR: LoadError: UndefVarError: x not defined',
    'panic: runtime error: index out of range [3] with length 3',
    './train: error while loading shared libraries: libnccl.so.2: cannot open shared object file: No such file or directory',
    "ls: cannot access '/data/set': No such file or directory",
    'tar: x.tar: Cannot open: No such file or directory',
    'gzip: x.gz: unexpected end of file',
    'slurmstepd: error: execve(): ./x: No such file or directory',
    'FATAL:   could not open image /x.sif: image format not recognized',
    'License checkout failed: No such feature exists.',
    'ERROR on proc 0: Unknown pair style (src/force.cpp:275)',
    'Killed by policy: memory limit exceeded (cgroup)',
)  # fmt: skip


def verdict(text: str) -> Verdict:
    """On one of four ranks, two a node."""
    ends = [
        RankEnd(
            rank, f"n{rank // 2 + 1}", ExitStatus(1, 0) if rank == 1 else ExitStatus(0, 15), 100.0, stopped=rank != 1,
            output=(Piece(99.5, "err", text),) if rank == 1 else (),
        )
        for rank in range(4)
    ]  # fmt: skip
    return diagnose(ends, Facts(), BOOK)


@pytest.mark.parametrize("text", [*(TRACE + line for line in PASSING), *PASSING_LINES])
def test_what_passes_is_worth_another_try(text: str) -> None:
    v = verdict(text + "\n")
    assert v.retriable in (Retriable.YES, Retriable.ONCE)
    assert not any(suspect.blame is Blame.YES for suspect in v.suspects)


@pytest.mark.parametrize("text", [*(TRACE + line for line in LASTING), *LASTING_LINES])
def test_what_lasts_is_not_and_no_node_is_suspected_for_it(text: str) -> None:
    v = verdict(text + "\n")
    assert v.retriable is Retriable.NO and not v.suspects
