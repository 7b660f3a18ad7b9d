/* A stand-in for libnvidia-ml.so.1 that the tests compile and the real nvidia-ml-py loads: eight GPUs of which 2 and 5
   are MIG-enabled (2 has MIG devices in places 0 and 2, 5 has none in use) and 7 is lost by default.

   STAND_IN_NVML names a file with lines "<gpu> <query>": that query of that GPU fails with "GPU is lost". It is read at
   each call, so that a test can break and mend a GPU while the agent runs. A line "0 init" breaks nvmlInit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
enum { NUM_GPUS = 8, NUM_PLACES = 7 };

typedef struct { int gpu, place; } Device;            /* place: -1 for the GPU itself */
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int gpu, memory; } Utilization;

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

int nvmlDeviceGetUUID(Device *handle, char *uuid, unsigned int length) {
    if (fails(handle->gpu, "uuid")) return GPU_IS_LOST;
    if (handle->place < 0) snprintf(uuid, length, "GPU-%d0000000-aaaa-bbbb-cccc-dddddddddddd", handle->gpu);
    else snprintf(uuid, length, "MIG-%d%d000000-aaaa-bbbb-cccc-dddddddddddd", handle->gpu, handle->place);
    return SUCCESS;
}

int nvmlDeviceGetName(Device *handle, char *name, unsigned int length) {
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
