/* A stand-in for libnvidia-ml.so.1: what nvidia-ml-py calls, answered from the text file that NVML_SIM names.
 *
 * The file is read anew in each call (nvml_sim.py writes it, and says what its lines mean), so a test moves the GPUs
 * under a process that runs. A value `!N` makes the call return the error N, `-` NVML_ERROR_NOT_SUPPORTED.
 * Layouts and numbers: nvml.h, as nvidia-ml-py 13.615 carries it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9,
       TIMEOUT = 10, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { MOST_GPUS = 16, MOST_SETS = 16, LINE = 1024 };

typedef struct { int number; } Device;
typedef struct { int used; long long seen; unsigned long long wanted[MOST_GPUS]; } EventSet;
typedef struct { Device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } EventData;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type, status;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; } value;
} FieldValue;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

static Device devices[MOST_GPUS];
static EventSet sets[MOST_SETS];
static int opened, lock = -1;

/* ---- the state file */

static FILE *open_state(void) {
    const char *path = getenv("NVML_SIM");
    return path ? fopen(path, "r") : NULL;
}

/* The rest of the first line that begins with `start`, 1 if there is one. */
static int find_line(const char *start, char *rest) {
    FILE *state = open_state();
    char line[LINE];
    int found = 0;
    while (state && !found && fgets(line, sizeof line, state)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, start, strlen(start))) {
            strcpy(rest, line + strlen(start));
            found = 1;
        }
    }
    if (state) fclose(state);
    return found;
}

/* The value of `key=` in the line of this GPU, without blanks. */
static int gpu_value(int number, const char *key, char *value) {
    char start[32], line[LINE], wanted[64];
    snprintf(start, sizeof start, "gpu %d ", number);
    if (!find_line(start, line)) return 0;
    snprintf(wanted, sizeof wanted, "%s=", key);
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " "))
        if (!strncmp(word, wanted, strlen(wanted))) {
            strcpy(value, word + strlen(wanted));
            return 1;
        }
    return 0;
}

/* Hangs for as long as the file says so, as a call about a lost GPU does. */
static void maybe_hang(const char *call) {
    char hung[LINE];
    while (find_line("hang ", hung) && !strcmp(hung, call)) usleep(20000);
}

/* What every call about one GPU begins with. `value` may be NULL. */
static int answer(const char *call, Device *device, const char *key, char *value) {
    char text[LINE];
    maybe_hang(call);
    if (!opened) return UNINITIALIZED;
    if (!device) return INVALID_ARGUMENT;
    if (gpu_value(device->number, "lost", text) && atoi(text)) return GPU_IS_LOST;
    if (!key) return OK;
    if (!gpu_value(device->number, key, text)) return UNKNOWN;
    if (text[0] == '!') return atoi(text + 1);
    if (!strcmp(text, "-")) return NOT_SUPPORTED;
    strcpy(value, text);
    return OK;
}

static int listed(int *numbers) {
    char text[LINE];
    int count = 0;
    for (int number = 0; number < MOST_GPUS; number++)
        if (gpu_value(number, "listed", text) && atoi(text)) numbers[count++] = number;
    return count;
}

static int copy_text(const char *call, Device *device, const char *key, char *text, unsigned size) {
    char value[LINE];
    int status = answer(call, device, key, value);
    if (status == OK) {
        for (char *letter = value; *letter; letter++)
            if (*letter == '_') *letter = ' ';
        snprintf(text, size, "%s", value);
    }
    return status;
}

static int number_of(const char *call, Device *device, const char *key, unsigned *number) {
    char value[LINE];
    int status = answer(call, device, key, value);
    if (status == OK) *number = (unsigned)strtoul(value, NULL, 0);
    return status;
}

/* ---- begin and end */

int nvmlInitWithFlags(unsigned flags) {
    char text[LINE], path[LINE];
    (void)flags;
    maybe_hang("init");
    if (!find_line("driver ", text)) return DRIVER_NOT_LOADED;
    if (text[0] == '!') return atoi(text + 1);
    if (!opened++) {
        /* Whoever has it open counts as a user of all GPUs: the stand-in of nvidia-smi asks for this lock. */
        snprintf(path, sizeof path, "%s.lock", getenv("NVML_SIM"));
        lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        flock(lock, LOCK_SH);
    }
    for (int number = 0; number < MOST_GPUS; number++) devices[number].number = number;
    return OK;
}

int nvmlShutdown(void) {
    if (!opened) return UNINITIALIZED;
    if (!--opened) close(lock);
    return OK;
}

const char *nvmlErrorString(int status) {
    return status == 27 ? "Not Ready" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int numbers[MOST_GPUS];
    maybe_hang("count");
    if (!opened) return UNINITIALIZED;
    *count = (unsigned)listed(numbers);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    int numbers[MOST_GPUS], count = listed(numbers);
    char text[LINE];
    maybe_hang("handle");
    if (index >= (unsigned)count) return INVALID_ARGUMENT;
    if (gpu_value(numbers[index], "handle", text) && text[0] == '!') return atoi(text + 1);
    *device = &devices[numbers[index]];
    return OK;
}

/* ---- one GPU */

int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) { return copy_text("uuid", device, "uuid", text, size); }
int nvmlDeviceGetName(Device *device, char *text, unsigned size) { return copy_text("name", device, "name", text, size); }

int nvmlDeviceGetSerial(Device *device, char *text, unsigned size) {
    return copy_text("serial", device, "serial", text, size);
}

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *info) {
    memset(info, 0, sizeof *info);
    return copy_text("pci", device, "bus", info->bus_id, sizeof info->bus_id);
}

int nvmlDeviceGetTotalEccErrors(Device *device, int type, int counter, unsigned long long *count) {
    unsigned number;
    int status = number_of("ecc", device, type == 1 && counter == 0 ? "ecc" : "other", &number);
    if (status == OK) *count = number;
    return status;
}

int nvmlDeviceGetRemappedRows(Device *device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failure) {
    char value[LINE];
    int status = answer("remap", device, "remap", value);
    if (status == OK && sscanf(value, "%u,%u,%u,%u", correctable, uncorrectable, pending, failure) != 4) return UNKNOWN;
    return status;
}

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    int status = answer("fields", device, NULL, NULL);
    for (int i = 0; status == OK && i < count; i++) {
        const char *key = values[i].field == 230 ? "recovery" : values[i].field == 4 ? "ecc" : "other";
        values[i].type = 1; /* unsigned int */
        values[i].status = (unsigned)number_of("fields", device, key, &values[i].value.ui);
    }
    return status;
}

int nvmlDeviceGetUtilizationRates(Device *device, Rates *rates) {
    int status = number_of("rates", device, "busy", &rates->gpu);
    return status == OK ? number_of("rates", device, "traffic", &rates->memory) : status;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    return number_of("power", device, "power", milliwatts);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *size, Process *processes) {
    char value[LINE];
    unsigned count = 0;
    int status = answer("processes", device, "processes", value);
    if (status != OK) return status;
    for (char *pid = strtok(value, ","); pid; pid = strtok(NULL, ",")) {
        if (processes && count < *size) {
            memset(&processes[count], 0, sizeof *processes);
            processes[count].pid = (unsigned)atoi(pid);
        }
        count++;
    }
    status = count && (!processes || count > *size) ? INSUFFICIENT_SIZE : OK;
    *size = count;
    return status;
}

/* ---- events: a line `event SEQUENCE GPU TYPE DATA` each */

int nvmlDeviceGetSupportedEventTypes(Device *device, unsigned long long *types) {
    unsigned number;
    int status = number_of("events", device, "events", &number);
    if (status == OK) *types = number;
    return status;
}

static int next_event(EventSet *set, int everything, EventData *data) {
    FILE *state = open_state();
    char line[LINE];
    int status = TIMEOUT;
    while (state && status == TIMEOUT && fgets(line, sizeof line, state)) {
        long long sequence;
        int number;
        unsigned long long type, xid;
        if (sscanf(line, "event %lld %d %llu %llu", &sequence, &number, &type, &xid) != 4 || sequence <= set->seen) continue;
        set->seen = sequence;
        if (everything || !(set->wanted[number] & type)) continue;
        memset(data, 0, sizeof *data);
        data->device = &devices[number];
        data->type = type;
        data->data = xid;
        status = OK;
    }
    if (state) fclose(state);
    return status;
}

int nvmlEventSetCreate(EventSet **set) {
    char text[LINE];
    if (!opened) return UNINITIALIZED;
    if (find_line("eventset !", text)) return atoi(text);
    for (int i = 0; i < MOST_SETS; i++)
        if (!sets[i].used) {
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].used = 1;
            next_event(&sets[i], 1, NULL); /* no history */
            *set = &sets[i];
            return OK;
        }
    return UNKNOWN;
}

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set) {
    unsigned long long supported;
    int status = nvmlDeviceGetSupportedEventTypes(device, &supported);
    if (status != OK) return status;
    if (!types || types & ~supported) return NOT_SUPPORTED;
    set->wanted[device->number] |= types;
    return OK;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned timeout_ms) {
    maybe_hang("wait");
    if (!opened) return UNINITIALIZED;
    int status = next_event(set, 0, data);
    if (status == TIMEOUT && timeout_ms) usleep(timeout_ms * 1000);
    return status == TIMEOUT ? next_event(set, 0, data) : status;
}

int nvmlEventSetFree(EventSet *set) {
    set->used = 0;
    return OK;
}
