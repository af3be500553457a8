/* A SPANK plugin that stands in for pyxis in the tests: its options and variables, and containers without root.
 *
 * A task gets user, mount and cgroup namespaces of its own and the files of an image, which is a folder. What pyxis does of this in
 * enroot, and where the two differ, docs/containers.md does not need: only what ftrun meets is alike - the paths, the identities,
 * the cgroup that reads "/", the mounts of which the last list counts, the words of a failure, and the variables that its hooks set
 * for each srun.
 *
 * An image's folder: a link that leads out of it (usr -> /usr) stands for the machine's own folder. A line PYTORCH_VERSION=... in
 * its etc/environment makes the variables. BOX_FAILS_ON=n2 lets no container start there; a file /tmp/box-NAME of a node says that
 * the container NAME runs there.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

SPANK_PLUGIN(pyxis, 1);

enum { IMAGE, MOUNTS, NAME, UNSHARE, WORKDIR, VALUES };
enum { HOME = VALUES, REMAP, ALL };

static const char *const names[ALL] = {"IMAGE", "MOUNTS", "NAME", "UNSHARE", "WORKDIR", "MOUNT_HOME", "REMAP_ROOT"};
static char values[ALL][PATH_MAX * 2];

static int take(int which, const char *value, int remote) {
  (void)remote;
  snprintf(values[which], sizeof(values[which]), "%s", value && *value ? value : "1");
  return 0;
}

static struct spank_option options[] = {
    {"container-image", "FOLDER", "the image", 1, IMAGE, take},
    {"container-mounts", "SRC:DST[:FLAGS],...", "more of the node", 1, MOUNTS, take},
    {"container-name", "NAME", "of the container", 1, NAME, take},
    {"container-unshare", "ipc", "a /dev/shm of its own", 1, UNSHARE, take},
    {"container-workdir", "FOLDER", "where the task starts", 1, WORKDIR, take},
    {"container-mount-home", NULL, "the home folder too", 0, HOME, take},
    {"container-remap-root", NULL, "user 0 inside", 0, REMAP, take},
    SPANK_OPTIONS_TABLE_END};

int slurm_spank_init(spank_t sp, int argc, char **argv) {
  (void)argc, (void)argv;
  if (spank_context() == S_CTX_JOB_SCRIPT || spank_context() == S_CTX_SLURMD) return 0;
  for (struct spank_option *each = options; each->name; each++)
    if (spank_option_register(sp, each) != ESPANK_SUCCESS) return -1;
  return 0;
}

static bool failed(const char *what, const char *path) {
  slurm_error("pyxis: %s %s: %s", what, path, strerror(errno));
  return false;
}

static bool write_file(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  if (fd >= 0) close(fd);
  return good || failed("couldn't write", path);
}

static void make_parents(char *path) {
  for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
    *at = 0;
    mkdir(path, 0755);
    *at = '/';
  }
}

/* root: of the container to be. target: below it. */
static bool bind(const char *source, const char *root, const char *target, bool read_only) {
  char path[PATH_MAX * 2];
  struct stat info;
  snprintf(path, sizeof(path), "%s%s", root, target);
  if (stat(source, &info) != 0) return failed("--container-mounts: source path does not exist:", source);
  make_parents(path);
  if (S_ISDIR(info.st_mode))
    mkdir(path, 0755);
  else
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
  if (mount(source, path, NULL, MS_BIND | MS_REC, NULL) != 0) return failed("couldn't mount", source);
  /* What the node's own mount forbids may not be allowed here: mount(2), EPERM. */
  if (read_only && mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) != 0 &&
      mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_RELATIME, NULL) != 0)
    return failed("couldn't remount", source);
  return true;
}

static bool lay_image(const char *image, const char *root) {
  DIR *folder = opendir(image);
  struct dirent *entry;
  if (!folder) return failed("no such image:", image);
  while ((entry = readdir(folder))) {
    char path[PATH_MAX * 3], target[NAME_MAX + 2], link[PATH_MAX] = "";
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof(path), "%s/%s", image, entry->d_name);
    snprintf(target, sizeof(target), "/%s", entry->d_name);
    if (readlink(path, link, sizeof(link) - 1) > 0 && link[0] != '/') {
      snprintf(path, sizeof(path), "%s%s", root, target);
      if (symlink(link, path) != 0) return failed("couldn't link", path);
    } else if (!bind(link[0] ? link : path, root, target, true))
      return false;
  }
  closedir(folder);
  return true;
}

static bool lay_mounts(const char *root) {
  char *rest = values[MOUNTS], *entry;
  while ((entry = strsep(&rest, ",")) && *entry) {
    char *source = strsep(&entry, ":"), *target = entry ? strsep(&entry, ":") : source;
    if (!bind(source, root, target, entry && strstr(entry, "ro"))) return false;
  }
  return true;
}

/* The whole of it, in a task that is the user's already. */
static bool enter(const char *home, const char *cwd) {
  char text[64], root[] = "/tmp/.box-XXXXXX";
  uid_t uid = geteuid(), gid = getegid();
  bool running = false;
  if (values[NAME][0]) {
    char mark[PATH_MAX * 3];
    snprintf(mark, sizeof(mark), "/tmp/box-%s", values[NAME]);
    running = access(mark, F_OK) == 0;
  }
  if (running && values[MOUNTS][0]) {
    slurm_spank_log("pyxis: ignoring --container-mounts when attaching to a running container");
    values[MOUNTS][0] = 0;
  }
  /* slurmstepd was root a moment ago, so that /proc/self is root's still. */
  prctl(PR_SET_DUMPABLE, 1);
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP) != 0) return failed("couldn't make", "namespaces");
  snprintf(text, sizeof(text), "%u %u 1\n", values[REMAP][0] ? 0 : uid, uid);
  if (!write_file("/proc/self/setgroups", "deny") || !write_file("/proc/self/uid_map", text)) return false;
  snprintf(text, sizeof(text), "%u %u 1\n", values[REMAP][0] ? 0 : gid, gid);
  if (!write_file("/proc/self/gid_map", text)) return false;
  if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0) return failed("couldn't make slave", "/");
  if (!mkdtemp(root) || mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755") != 0)
    return failed("couldn't mount", root);
  if (!lay_image(values[IMAGE], root)) return false;
  if (!bind("/proc", root, "/proc", false) || !bind("/sys", root, "/sys", false) || !bind("/dev", root, "/dev", false)) return false;
  char inner[PATH_MAX];
  snprintf(inner, sizeof(inner), "%s/tmp", root);
  mkdir(inner, 01777);
  if (values[UNSHARE][0]) {
    snprintf(inner, sizeof(inner), "%s/dev/shm", root);
    if (mount("tmpfs", inner, "tmpfs", MS_NOSUID | MS_NODEV, NULL) != 0) return failed("couldn't mount", inner);
  }
  if (values[HOME][0] && !bind(home, root, values[REMAP][0] ? "/root" : home, false)) return false;
  if (!lay_mounts(root)) return false;
  if (chdir(root) != 0 || syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0)
    return failed("couldn't switch to", root);
  const char *folder = values[WORKDIR][0] ? values[WORKDIR] : cwd;
  return chdir(folder) == 0 || chdir("/") == 0 || failed("couldn't chdir to", folder);
}

/* As enroot's hook 50-slurm-pytorch and pyxis itself: by what one srun says, even where it is one of several of a step. */
static void set_variables(spank_t sp) {
  const struct { const char *from, *to; } pairs[] = {
      {"SLURM_PROCID", "RANK"}, {"SLURM_LOCALID", "LOCAL_RANK"}, {"SLURM_NTASKS", "WORLD_SIZE"}};
  char path[PATH_MAX * 3], line[256], value[256], nodes[256];
  snprintf(path, sizeof(path), "%s/etc/environment", values[IMAGE]);
  FILE *file = fopen(path, "r");
  bool torch = false;
  while (file && fgets(line, sizeof(line), file)) {
    char *is = strchr(line, '=');
    if (!is) continue;
    *is = 0;
    is[1 + strcspn(is + 1, "\n")] = 0;
    spank_setenv(sp, line, is + 1, 1);
    torch = torch || strcmp(line, "PYTORCH_VERSION") == 0;
  }
  if (file) fclose(file);
  if (!torch) return;
  for (int at = 0; at < 3; at++)
    if (spank_getenv(sp, pairs[at].from, value, sizeof(value)) == ESPANK_SUCCESS) spank_setenv(sp, pairs[at].to, value, 1);
  if (spank_getenv(sp, "SLURM_STEP_NODELIST", nodes, sizeof(nodes)) == ESPANK_SUCCESS) {
    /* The first of n2,n3 or n[2-3]; that is all that the tests' nodes are called. */
    char *bracket = strchr(nodes, '[');
    if (bracket) memmove(bracket, bracket + 1, strlen(bracket));
    nodes[strcspn(nodes, ",-]")] = 0;
    spank_setenv(sp, "MASTER_ADDR", nodes, 1);
  }
  if (spank_getenv(sp, "SLURM_JOB_ID", value, sizeof(value)) == ESPANK_SUCCESS) {
    snprintf(line, sizeof(line), "%d", atoi(value) % 4536 + 61000);
    spank_setenv(sp, "MASTER_PORT", line, 1);
  }
}

int slurm_spank_task_init(spank_t sp, int argc, char **argv) {
  char home[PATH_MAX] = "/", cwd[PATH_MAX], node[256] = "", fails_on[256] = "";
  uint32_t step;
  (void)argc, (void)argv;
  /* Variables, where there is no option; a batch script stays outside. */
  if (spank_get_item(sp, S_JOB_STEPID, &step) == ESPANK_SUCCESS && step >= 0xfffffff0) return 0;
  for (int which = 0; which < ALL; which++) {
    char name[64];
    snprintf(name, sizeof(name), "PYXIS_CONTAINER_%s", names[which]);
    if (!values[which][0] && spank_getenv(sp, name, values[which], sizeof(values[which])) != ESPANK_SUCCESS) values[which][0] = 0;
  }
  if (!values[IMAGE][0]) return 0;
  spank_getenv(sp, "HOME", home, sizeof(home));
  spank_getenv(sp, "SLURMD_NODENAME", node, sizeof(node));
  spank_getenv(sp, "BOX_FAILS_ON", fails_on, sizeof(fails_on));
  if (fails_on[0] && (strcmp(fails_on, node) == 0 || strcmp(fails_on, "all") == 0)) {
    slurm_error("pyxis: failed to create container filesystem");
    slurm_error("pyxis: [ERROR] Could not create the container: No space left on device");
    return -1;
  }
  set_variables(sp);
  return getcwd(cwd, sizeof(cwd)) && enter(home, cwd) ? 0 : -1;
}
