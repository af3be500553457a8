/* A stand-in for the driver's libdcmi.so: the calls that ftslurm makes, answered from the state that npu_sim.py writes.

   State: the file `dcmi.state` beside the library (npu_sim.py's NODE.dcmi, mostly by a link), read anew in each call.
   Build: cc -shared -fPIC -pthread -o libdcmi.so libdcmi.c -ldl

   Signatures, structures, numbers and what is not supported where follow the driver's public header and its sources of
   2026. Chips are counted when the library is initialised and never again, as there. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { OK = 0, INVALID = -8001, INNER = -8005, WRONG_ID = -8007, NOT_READY = -8012, OCCUPIED = -8020, UNSUPPORTED = -8255 };
enum { MOST = 64, MOST_FAULTS = 256, NAME = 256, INFO = 32, RESERVED = 32 };
enum { CLEARED = 0, RAISED = 1, ONCE = 2 };

struct dcmi_event_filter {
    unsigned long long filter_flag;
    unsigned int event_id;
    unsigned char severity, node_type, reserved[RESERVED];
};

struct dcmi_dms_fault_event {
    unsigned int event_id;
    unsigned short deviceid;
    unsigned char node_type, node_id, sub_node_type, sub_node_id, severity, assertion;
    int event_serial_num, notify_serial_num;
    unsigned long long alarm_raised_time;
    char event_name[NAME], additional_info[INFO];
    unsigned char os_id, pad1[1];
    unsigned short node_type_ex, sub_node_type_ex;
    unsigned char pad2[2], reserved[RESERVED - 8];
};

struct dcmi_event {
    int type;
    union { struct dcmi_dms_fault_event dms_event; } event_t;
};

struct dcmi_proc_mem_info {
    int proc_id;
    unsigned long proc_mem_usage;
};

typedef void (*handler_t)(struct dcmi_event *);

struct chip { int card, chip, lost, network, aicore, memory, power, logic; };
struct fault { int card, chip; unsigned code; int severity; double from, until; };
struct process { int card, chip, pid; };
struct once { double at; int card, chip; unsigned code; int severity; };
struct state {
    char layout[16], mood[16];
    double resetting_until, booted_at, network_at;
    struct chip chips[MOST];
    struct fault faults[MOST_FAULTS];
    struct process processes[MOST_FAULTS];
    struct once once[MOST_FAULTS];
    int n_chips, n_faults, n_processes, n_once;
};

static struct { int card, chip, logic; } counted[MOST];
static int n_counted, initialised, subscribed;

static double now(void)
{
    struct timeval t;
    gettimeofday(&t, NULL);
    return t.tv_sec + t.tv_usec / 1e6;
}

/* ---- the state */

static void read_line(struct state *s, const char *line)
{
    struct chip c;
    struct fault f;
    struct process p;
    struct once o;
    if (sscanf(line, "node %15s %15s %lf %lf %lf", s->layout, s->mood, &s->resetting_until, &s->booted_at, &s->network_at) == 5)
        return;
    if (s->n_chips < MOST && sscanf(line, "chip %d %d %d %d %d %d %d %d", &c.card, &c.chip, &c.lost, &c.network, &c.aicore,
                                    &c.memory, &c.power, &c.logic) == 8)
        s->chips[s->n_chips++] = c;
    else if (s->n_faults < MOST_FAULTS && sscanf(line, "fault %d %d %x %d %lf %lf", &f.card, &f.chip, &f.code, &f.severity,
                                                 &f.from, &f.until) == 6)
        s->faults[s->n_faults++] = f;
    else if (s->n_processes < MOST_FAULTS && sscanf(line, "process %d %d %d", &p.card, &p.chip, &p.pid) == 3)
        s->processes[s->n_processes++] = p;
    else if (s->n_once < MOST_FAULTS && sscanf(line, "once %lf %d %d %x %d", &o.at, &o.card, &o.chip, &o.code, &o.severity) == 5)
        s->once[s->n_once++] = o;
}

static void load(struct state *s)
{
    Dl_info self;
    char path[PATH_MAX], line[512], *slash;
    FILE *file;
    memset(s, 0, sizeof *s);
    dladdr((void *)load, &self);
    snprintf(path, sizeof path - 16, "%s", self.dli_fname);
    slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "dcmi.state");
    if ((file = fopen(path, "r")) == NULL)
        return;
    while (fgets(line, sizeof line, file) != NULL)
        read_line(s, line);
    fclose(file);
}

/* The state for one call; a driver that hangs does so here. */
static int enter(struct state *s)
{
    for (load(s); strcmp(s->mood, "hang") == 0; load(s))
        usleep(20000);
    if (strcmp(s->mood, "crash") == 0)
        abort();
    if (strcmp(s->mood, "fail") == 0)
        return INNER;
    return initialised ? OK : INNER;
}

static int is_950(const struct state *s) { return strcmp(s->layout, "950") == 0; }

static int active(const struct fault *f, double at) { return at >= f->from && at < f->until; }

static int is_counted(int card, int chip)
{
    for (int i = 0; i < n_counted; i++)
        if (counted[i].card == card && counted[i].chip == chip)
            return 1;
    return 0;
}

/* The chip asked for; OK only where it answers. */
static int find(struct state *s, int card, int chip, struct chip **found)
{
    int code = enter(s);
    if (code != OK)
        return code;
    if (!is_counted(card, chip))
        return WRONG_ID;
    for (int i = 0; i < s->n_chips; i++)
        if (s->chips[i].card == card && s->chips[i].chip == chip) {
            *found = &s->chips[i];
            return s->chips[i].lost || now() < s->resetting_until ? NOT_READY : OK;
        }
    return NOT_READY;
}

/* ---- what every generation has; `v2` is that of the 950 */

static int start(int v2)
{
    struct state s;
    initialised = 1;
    int code = enter(&s);
    initialised = 0;
    if (code != OK)
        return code;
    if (strcmp(s.mood, "occupied") == 0)
        return OCCUPIED;
    if (v2 && !is_950(&s))
        return UNSUPPORTED;
    n_counted = 0;
    for (int i = 0; i < s.n_chips && now() >= s.resetting_until; i++)
        if (!s.chips[i].lost) {
            counted[n_counted].card = s.chips[i].card;
            counted[n_counted].chip = s.chips[i].chip;
            counted[n_counted++].logic = s.chips[i].logic;
        }
    initialised = 1;
    return OK;
}

static int cards(int v2, int *count, int *list, int length)
{
    struct state s;
    int code = enter(&s);
    if (code != OK)
        return code;
    if (v2 != is_950(&s))
        return UNSUPPORTED;
    *count = 0;
    for (int i = 0; i < n_counted && *count < length; i++)
        if (*count == 0 || list[*count - 1] != counted[i].card)
            list[(*count)++] = counted[i].card;
    return OK;
}

static int health(int card, int chip, unsigned *health_of)
{
    struct state s;
    struct chip *c;
    int code = find(&s, card, chip, &c);
    if (code != OK)
        return code;
    *health_of = 0;
    for (int i = 0; i < s.n_faults; i++)
        if (s.faults[i].card == card && s.faults[i].chip == chip && active(&s.faults[i], now()))
            if ((unsigned)s.faults[i].severity > *health_of)
                *health_of = s.faults[i].severity;
    return OK;
}

static int codes(int card, int chip, int *count, unsigned *list, unsigned length)
{
    struct state s;
    struct chip *c;
    int code = find(&s, card, chip, &c);
    if (code != OK)
        return code;
    *count = 0;
    for (int i = 0; i < s.n_faults && (unsigned)*count < length; i++)
        if (s.faults[i].card == card && s.faults[i].chip == chip && active(&s.faults[i], now()))
            list[(*count)++] = s.faults[i].code;
    return OK;
}

static int words(int card, int chip, unsigned code_of, unsigned char *text, int length)
{
    struct state s;
    struct chip *c;
    int code = find(&s, card, chip, &c);
    if (code != OK)
        return code;
    if (text == NULL || length < 48)
        return INVALID;
    snprintf((char *)text, length, "node type=%#x, sensor type=%#x, event state=%#x", code_of >> 17 & 0x7FF, code_of >> 9 & 0xFF,
             code_of & 0x1FF);
    return OK;
}

static void fill(struct dcmi_event *event, int logic, unsigned code, int severity, int assertion, int serial)
{
    struct dcmi_dms_fault_event *f = &event->event_t.dms_event;
    memset(event, 0, sizeof *event);
    f->event_id = code;
    f->deviceid = logic;
    f->node_type = f->node_type_ex = code >> 17 & 0x7FF;
    f->severity = severity;
    f->assertion = assertion;
    f->event_serial_num = f->notify_serial_num = serial;
    f->alarm_raised_time = (unsigned long long)(now() * 1000);
    snprintf(f->event_name, sizeof f->event_name, "deviceid=%d, event %08X", logic, code);
}

static int boot(int card, int chip, int *status)
{
    struct state s;
    struct chip *c;
    int code = find(&s, card, chip, &c);
    if (code != OK)
        return code;
    *status = now() < s.booted_at ? 2 : 16;
    return OK;
}

static int network(int card, int chip, int *result)
{
    struct state s;
    struct chip *c;
    int code = find(&s, card, chip, &c);
    if (code != OK)
        return code;
    *result = now() < s.network_at ? 3 : c->network;
    return OK;
}

static int rate(int card, int chip, int kind, unsigned *percent)
{
    struct state s;
    struct chip *c;
    int code = find(&s, card, chip, &c);
    if (code != OK)
        return code;
    int hbm = strcmp(s.layout, "310p") != 0;
    if (kind == 2)
        *percent = c->aicore;
    else if (kind == (hbm ? 6 : 1))
        *percent = c->memory;
    else
        return UNSUPPORTED;
    return OK;
}

static int power(int card, int chip, int *tenths)
{
    struct state s;
    struct chip *c;
    int code = find(&s, card, chip, &c);
    if (code == OK && strcmp(s.layout, "310p") == 0)
        return UNSUPPORTED;
    if (code == OK)
        *tenths = c->power;
    return code;
}

static int processes(int card, int chip, struct dcmi_proc_mem_info *list, int *count)
{
    struct state s;
    struct chip *c;
    int code = find(&s, card, chip, &c);
    if (code != OK)
        return code;
    *count = 0;
    for (int i = 0; i < s.n_processes && *count < 32; i++)
        if (s.processes[i].card == card && s.processes[i].chip == chip) {
            list[*count].proc_id = s.processes[i].pid;
            list[(*count)++].proc_mem_usage = 1UL << 30;
        }
    return OK;
}

/* HCCS on training servers, UB on the 950, a PCIe host bridge between inference cards. */
static int topology(int *kind)
{
    struct state s;
    int code = enter(&s);
    if (code == OK)
        *kind = is_950(&s) ? 8 : strcmp(s.layout, "310p") == 0 ? 2 : 3;
    return code;
}

/* ---- events: a thread that tells what has changed since it looked last */

static handler_t handler;
static double heard_until;

static int logic_of(int card, int chip)
{
    for (int i = 0; i < n_counted; i++)
        if (counted[i].card == card && counted[i].chip == chip)
            return counted[i].logic;
    return -1;
}

static int holds(const struct state *s, const struct fault *f, double at)
{
    for (int i = 0; i < s->n_faults; i++) {
        const struct fault *other = &s->faults[i];
        if (other->card == f->card && other->chip == f->chip && other->code == f->code && active(other, at))
            return 1;
    }
    return 0;
}

/* Faults that `s` has at `at` and `other` has not at its time. */
static void tell_changes(const struct state *s, double at, const struct state *other, double then, int assertion, int *serial)
{
    struct dcmi_event event;
    for (int i = 0; i < s->n_faults; i++) {
        const struct fault *f = &s->faults[i];
        if (!active(f, at) || holds(other, f, then) || logic_of(f->card, f->chip) < 0)
            continue;
        fill(&event, logic_of(f->card, f->chip), f->code, f->severity, assertion, ++*serial);
        handler(&event);
    }
}

static void *listen(void *unused)
{
    static struct state before, after;
    double then = heard_until, at;
    int serial = 0;
    struct dcmi_event event;
    (void)unused;
    for (load(&before);; before = after, then = at) {
        usleep(5000);
        load(&after);
        at = now();
        tell_changes(&after, at, &before, then, RAISED, &serial);
        tell_changes(&before, then, &after, at, CLEARED, &serial);
        for (int i = 0; i < after.n_once; i++) {
            const struct once *o = &after.once[i];
            if (o->at <= heard_until || o->at > at || logic_of(o->card, o->chip) < 0)
                continue;
            heard_until = o->at;
            fill(&event, logic_of(o->card, o->chip), o->code, o->severity, ONCE, ++serial);
            handler(&event);
        }
    }
    return NULL;
}

static int subscribe(int all, handler_t wanted)
{
    struct state s;
    pthread_t thread;
    int code = enter(&s);
    if (code != OK)
        return code;
    if (!all || wanted == NULL)
        return INVALID;
    if (strcmp(s.mood, "deaf") == 0)
        return UNSUPPORTED;
    if (subscribed)
        return OCCUPIED;
    subscribed = 1;
    handler = wanted;
    heard_until = now();
    return pthread_create(&thread, NULL, listen, NULL) == 0 ? OK : INNER;
}

/* ---- the exported names */

#define OLD(call) do { struct state s_; load(&s_); return is_950(&s_) ? UNSUPPORTED : (call); } while (0)
#define NEW(call) do { struct state s_; load(&s_); return is_950(&s_) ? (call) : UNSUPPORTED; } while (0)

int dcmi_init(void) { return start(0); }
int dcmi_get_card_list(int *n, int *list, int length) { return cards(0, n, list, length); }
int dcmi_get_device_id_in_card(int card, int *n, int *mcu, int *cpu)
{
    struct state s;
    int code = enter(&s);
    if (code != OK || is_950(&s))
        return code != OK ? code : UNSUPPORTED;
    *n = 0, *mcu = -1, *cpu = -1;
    for (int i = 0; i < n_counted; i++)
        if (counted[i].card == card && counted[i].chip >= *n)
            *n = counted[i].chip + 1;
    return *n ? OK : INVALID;
}
int dcmi_get_device_logic_id(int *logic, int card, int chip)
{
    *logic = logic_of(card, chip);
    return *logic < 0 ? WRONG_ID : OK;
}
int dcmi_get_device_health(int a, int b, unsigned *h) { OLD(health(a, b, h)); }
int dcmi_get_device_errorcode_v2(int a, int b, int *n, unsigned *list, unsigned length) { OLD(codes(a, b, n, list, length)); }
int dcmi_get_device_errorcode_string(int a, int b, unsigned c, unsigned char *t, int length) { OLD(words(a, b, c, t, length)); }
int dcmi_get_device_current_fault_event(int a, int b, struct dcmi_event *list, int length, int *n)
{
    (void)a, (void)b, (void)list, (void)length, (void)n;
    return UNSUPPORTED;
}
int dcmi_get_device_boot_status(int a, int b, int *status) { OLD(boot(a, b, status)); }
int dcmi_get_device_network_health(int a, int b, int *result) { OLD(network(a, b, result)); }
int dcmi_get_device_utilization_rate(int a, int b, int kind, unsigned *percent) { OLD(rate(a, b, kind, percent)); }
int dcmi_get_device_power_info(int a, int b, int *tenths) { OLD(power(a, b, tenths)); }
int dcmi_get_device_resource_info(int a, int b, struct dcmi_proc_mem_info *list, int *n) { OLD(processes(a, b, list, n)); }
int dcmi_get_topo_info_by_device_id(int a, int b, int c, int d, int *kind)
{
    (void)a, (void)b, (void)c, (void)d;
    OLD(topology(kind));
}
int dcmi_subscribe_fault_event(int a, int b, struct dcmi_event_filter filter, handler_t h)
{
    OLD(filter.filter_flag == 0 ? subscribe(a == -1 && b == -1, h) : INVALID);
}

int dcmiv2_init(void) { return start(1); }
int dcmiv2_get_device_list(int *list, int *n, int length) { return cards(1, n, list, length); }
int dcmiv2_get_device_health(int a, unsigned *h) { NEW(health(a, 0, h)); }
int dcmiv2_get_device_error_code_list(int a, int *n, unsigned *list, unsigned length) { NEW(codes(a, 0, n, list, length)); }
int dcmiv2_get_device_error_info(int a, unsigned c, unsigned char *t, int length) { NEW(words(a, 0, c, t, length)); }
int dcmiv2_get_device_current_fault_event(int card, struct dcmi_event *list, int length, int *n)
{
    struct state s;
    struct chip *c;
    int code = find(&s, card, 0, &c);
    if (code != OK || !is_950(&s))
        return code != OK ? code : UNSUPPORTED;
    *n = 0;
    for (int i = 0; i < s.n_faults && *n < length; i++)
        if (s.faults[i].card == card && active(&s.faults[i], now()))
            fill(&list[(*n)++], c->logic, s.faults[i].code, s.faults[i].severity, RAISED, i);
    return OK;
}
int dcmiv2_get_device_boot_status(int a, int *status) { NEW(boot(a, 0, status)); }
int dcmiv2_get_device_network_health(int a, int *result) { NEW(network(a, 0, result)); }
int dcmiv2_get_device_utilization_rate(int a, int kind, unsigned *percent) { NEW(rate(a, 0, kind, percent)); }
int dcmiv2_get_device_power_info(int a, int *tenths) { NEW(power(a, 0, tenths)); }
int dcmiv2_get_device_proc_mem_info(int a, struct dcmi_proc_mem_info *list, int *n) { NEW(processes(a, 0, list, n)); }
int dcmiv2_get_topo_info_by_device_id(int a, int b, int *kind)
{
    (void)a, (void)b;
    NEW(topology(kind));
}
int dcmiv2_subscribe_fault_event(int a, struct dcmi_event_filter filter, handler_t h)
{
    NEW(filter.filter_flag == 0 ? subscribe(a == -1, h) : INVALID);
}

/* For the test of the layer above: are its structures as large as these? */
unsigned long standin_size_of_event(void) { return sizeof(struct dcmi_event); }
unsigned long standin_size_of_filter(void) { return sizeof(struct dcmi_event_filter); }
