from spack.package import Executable, depends_on, isdir, join_path, license, set_env, symlink, version
from spack_repo.builtin.build_systems.generic import Package


class Ftslurm(Package):
    """srun that restarts, replaces and requeues what fails in training jobs. Its libraries are an environment of its own: on
    PYTHONPATH they would stand before those of the training program.
    """

    # There is no download: `spack dev-build --source-path CHECKOUT ftslurm@0.1.0`.
    has_code = True

    license("Apache-2.0")

    version("0.1.0")

    depends_on("python@3.10:", type=("build", "run"))

    def install(self, spec, prefix):
        place = prefix.lib.ftslurm
        set_env(PYTHON=spec["python"].command.path)
        Executable("tools/environment")(place)
        symlink(join_path(place, "commands"), prefix.bin)
        if isdir(place.share):
            symlink(place.share, prefix.share)
