/* A stand-in for libnvidia-ml.so.1 that the tests compile and the real nvidia-ml-py loads: eight GPUs of which 2 and 5
   are MIG-enabled (2 has MIG devices in places 0 and 2, 5 has none in use) and 7 is lost by default.

   STAND_IN_NVML names a file with lines "<gpu> <query>": that query of that GPU fails with "GPU is lost". It is read at
   each call, so that a test can break and mend a GPU while the agent runs. A line "0 init" breaks nvmlInit. Other words:
   "hang" (its name never comes), "noevents", and counters as "ecc=3", "pending=1", "failed=1", "recovery=1".

   STAND_IN_NVML_EVENTS names a file to which a test appends lines "<gpu> <event type> <xid> <gpu instance> <compute
   instance>": events, for the sets that hold this GPU and are older than the line. Beside it, a file with the suffix
   ".watched" holds the GPUs of the event set while there is one, and ".hung" says that a call hangs or did. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { NUM_GPUS = 8, NUM_PLACES = 7, POLL_MILLISECONDS = 10 };

typedef struct { int gpu, place; } Device;            /* place: -1 for the GPU itself */
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;
typedef struct { long line; int is_registered[NUM_GPUS]; } EventSet; /* line: of the events file, read up to here */
typedef struct { Device *device; unsigned long long type, data; unsigned int gpu_instance, compute_instance; } Event;
typedef struct {
    unsigned int id, scope;
    long long timestamp, latency;
    int type, result;
    union { double real; unsigned int number; } value;
} Field;

static Device devices[NUM_GPUS][NUM_PLACES + 1];

static int fails(int gpu, const char *query) {
    const char *path = getenv("STAND_IN_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    int number, found = 0;
    char name[32];
    if (!file) return gpu == 7 && strcmp(query, "name") == 0;
    while (fscanf(file, "%d %31s", &number, name) == 2) found |= number == gpu && strcmp(name, query) == 0;
    fclose(file);
    return found;
}

/* The number after "<name>=" of that GPU, 0 where the file has none. */
static unsigned int counter(int gpu, const char *counter_name) {
    const char *path = getenv("STAND_IN_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = strlen(counter_name);
    int number;
    unsigned int found = 0;
    char name[32];
    if (!file) return 0;
    while (fscanf(file, "%d %31s", &number, name) == 2)
        if (number == gpu && strncmp(name, counter_name, length) == 0 && name[length] == '=')
            found = (unsigned int)atoi(name + length + 1);
    fclose(file);
    return found;
}

static Device *device(int gpu, int place) {
    Device *found = &devices[gpu][place + 1];
    found->gpu = gpu;
    found->place = place;
    return found;
}

static int has_mig(int gpu) { return gpu == 2 || gpu == 5; }

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return fails(0, "init") ? DRIVER_NOT_LOADED : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }

int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = NUM_GPUS;
    return fails(0, "count") ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device **handle) {
    *handle = device((int)index, -1);
    return fails((int)index, "handle") ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Device *handle, PciInfo *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%d0:00.0", handle->gpu);
    return fails(handle->gpu, "pci") ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Device **handle) {
    int gpu = bus_id[9] - '0';
    if (gpu < 0 || gpu >= NUM_GPUS) return NOT_FOUND;
    *handle = device(gpu, -1);
    return fails(gpu, "handle") ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetUUID(Device *handle, char *uuid, unsigned int length) {
    if (fails(handle->gpu, "uuid")) return GPU_IS_LOST;
    if (handle->place < 0) snprintf(uuid, length, "GPU-%d0000000-aaaa-bbbb-cccc-dddddddddddd", handle->gpu);
    else snprintf(uuid, length, "MIG-%d%d000000-aaaa-bbbb-cccc-dddddddddddd", handle->gpu, handle->place);
    return SUCCESS;
}

/* Leaves a file of the events file's name and this suffix, or takes it away. */
static FILE *note(const char *suffix, int is_there) {
    const char *path = getenv("STAND_IN_NVML_EVENTS");
    char name[512];
    if (!path) return NULL;
    snprintf(name, sizeof name, "%s.%s", path, suffix);
    if (is_there) return fopen(name, "w");
    unlink(name);
    return NULL;
}

int nvmlDeviceGetName(Device *handle, char *name, unsigned int length) {
    while (fails(handle->gpu, "hang")) {
        FILE *file = note("hung", 1);
        if (file) fclose(file);
        usleep(1000 * POLL_MILLISECONDS);
    }
    if (fails(handle->gpu, "name")) return GPU_IS_LOST;
    snprintf(name, length, handle->place < 0 ? "Stand-in GPU" : "Stand-in GPU MIG 1g.10gb");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Device *handle, Memory *memory) {
    memory->total = handle->place < 0 ? 80ULL << 30 : 10ULL << 30;
    memory->used = 1ULL << 30;
    memory->free = memory->total - memory->used;
    return fails(handle->gpu, "memory") ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetMigMode(Device *handle, unsigned int *current, unsigned int *pending) {
    if (handle->gpu == 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned int)has_mig(handle->gpu);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *handle, unsigned int *count) {
    *count = has_mig(handle->gpu) ? NUM_PLACES : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *handle, unsigned int place, Device **mig) {
    if (handle->gpu != 2 || (place != 0 && place != 2)) return NOT_FOUND;
    *mig = device(2, (int)place);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(Device *handle, unsigned int *id) { *id = (unsigned int)handle->place + 7; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(Device *handle, unsigned int *id) { (void)handle; *id = 0; return SUCCESS; }

int nvmlDeviceGetUtilizationRates(Device *handle, Utilization *rates) {
    if (handle->place >= 0) return NOT_SUPPORTED;
    rates->gpu = 10 * (unsigned int)handle->gpu;
    rates->memory = 5;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(Device *handle, int kind, int since, unsigned long long *count) {
    (void)kind, (void)since;
    if (handle->gpu == 0) return NOT_SUPPORTED;
    *count = counter(handle->gpu, "ecc");
    return fails(handle->gpu, "errors") ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetRemappedRows(Device *handle, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending,
                              unsigned int *failed) {
    if (has_mig(handle->gpu)) return NOT_SUPPORTED;
    *corrected = *uncorrected = 0;
    *pending = counter(handle->gpu, "pending");
    *failed = counter(handle->gpu, "failed");
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(Device *handle, int num_fields, Field *fields) {
    for (int index = 0; index < num_fields; index++) {
        fields[index].result = fields[index].id == 230 ? SUCCESS : NOT_SUPPORTED;
        fields[index].value.number = counter(handle->gpu, "recovery");
    }
    return SUCCESS;
}

static void note_watched(const EventSet *set) {
    FILE *file = note("watched", set != NULL);
    if (!file) return;
    for (int gpu = 0; gpu < NUM_GPUS; gpu++)
        if (set->is_registered[gpu]) fprintf(file, "%d\n", gpu);
    fclose(file);
}

/* Takes the next event that a test has written, if any, and says whether there was one. */
static int next_event(EventSet *set, Event *event) {
    const char *path = getenv("STAND_IN_NVML_EVENTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char text[128];
    int gpu;
    if (!file) return 0;
    for (long line = 0; fgets(text, sizeof text, file) && strchr(text, '\n'); line++) {
        if (line < set->line) continue;
        set->line = line + 1;
        if (!event) continue;
        if (sscanf(text, "%d %llu %llu %u %u", &gpu, &event->type, &event->data, &event->gpu_instance,
                   &event->compute_instance) != 5 || !set->is_registered[gpu]) continue;
        event->device = device(gpu, -1);
        fclose(file);
        return 1;
    }
    fclose(file);
    return 0;
}

int nvmlEventSetCreate(EventSet **set) {
    *set = calloc(1, sizeof **set);
    next_event(*set, NULL);
    return SUCCESS;
}

int nvmlEventSetFree(EventSet *set) {
    note_watched(NULL);
    free(set);
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(Device *handle, unsigned long long *types) {
    *types = 0x2 | 0x8;
    return fails(handle->gpu, "noevents") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceRegisterEvents(Device *handle, unsigned long long types, EventSet *set) {
    (void)types;
    set->is_registered[handle->gpu] = 1;
    note_watched(set);
    return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet *set, Event *event, unsigned int milliseconds) {
    for (unsigned int waited = 0; waited <= milliseconds; waited += POLL_MILLISECONDS) {
        if (next_event(set, event)) return SUCCESS;
        usleep(1000 * POLL_MILLISECONDS);
    }
    for (int gpu = 0; gpu < NUM_GPUS; gpu++)
        if (set->is_registered[gpu] && fails(gpu, "events")) return GPU_IS_LOST;
    return TIMEOUT;
}
