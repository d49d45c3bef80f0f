/* A fake libnvidia-ml.so.1: it answers NVML's calls from the description file that FAKE_NVML names.
 *
 * A description is lines "FUNCTION VALUE" or "INDEX:FUNCTION VALUE" (for one GPU; it goes first). VALUE is a text or
 * numbers, "!15" to return error 15, "hang" never to return, or "crash" to die. What is not described is "Not
 * Supported". Functions, codes and structures are as in nvml.h. With -DDRIVER=440 what is newer than R440 is not there.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef DRIVER
#define DRIVER 580
#endif
#define LINE 4096

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

typedef struct { int index; } *device;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;

static int initialised;

/* Finds the value of FUNCTION for a GPU (-1: none) and returns NVML's code. */
static int answer(int index, const char *function, char *value) {
    char line[LINE], special[128], *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    int found = 0;
    snprintf(special, sizeof special, "%d:%s ", index, function);
    while (file && found < 2 && fgets(line, sizeof line, file)) {
        size_t length = strlen(function);
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, special, strlen(special))) {
            found = 2;
            strcpy(value, line + strlen(special));
        } else if (!found && !strncmp(line, function, length) && line[length] == ' ') {
            found = 1;
            strcpy(value, line + length + 1);
        }
    }
    if (file) fclose(file);
    if (found && !strcmp(value, "hang")) for (;;) pause();
    if (found && !strcmp(value, "crash")) {
        signal(SIGSEGV, SIG_DFL); /* a test runner's fault handler would print */
        raise(SIGSEGV);
    }
    if (found && value[0] == '!') return atoi(value + 1);
    return found ? SUCCESS : NOT_SUPPORTED;
}

static int text(int index, const char *function, char *buffer, unsigned size) {
    char value[LINE];
    int code = answer(index, function, value);
    if (!initialised && index >= 0) return UNINITIALIZED;
    if (code) return code;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(buffer, value);
    return SUCCESS;
}

static int numbers(int index, const char *function, int count, unsigned long long *found) {
    char value[LINE], *rest = value;
    int code = answer(index, function, value);
    if (!initialised) return UNINITIALIZED;
    for (int i = 0; !code && i < count; i++) found[i] = strtoull(rest, &rest, 10);
    return code;
}

/* ------------------------------------------------------------------ the library and the driver */

int nvmlInitWithFlags(unsigned flags) {
    char value[LINE];
    int code = answer(-1, "nvmlInitWithFlags", value);
    (void)flags;
    initialised = code == SUCCESS || code == NOT_SUPPORTED; /* not described: it starts */
    return initialised ? SUCCESS : code;
}

int nvmlShutdown(void) { initialised = 0; return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetNVMLVersion(char *buffer, unsigned size) { return text(-1, __func__, buffer, size); }

int nvmlSystemGetDriverVersion(char *buffer, unsigned size) {
    return initialised ? text(-1, __func__, buffer, size) : UNINITIALIZED;
}

static int number(int index, const char *function, unsigned *found) {
    unsigned long long wide = 0;
    int code = numbers(index, function, 1, &wide);
    if (!code) *found = (unsigned)wide;
    return code;
}

int nvmlSystemGetCudaDriverVersion(unsigned *version) { return number(-1, __func__, version); }
int nvmlDeviceGetCount_v2(unsigned *count) { return number(-1, __func__, count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *handle) {
    static struct { int index; } devices[64];
    unsigned count = 0;
    char value[LINE];
    int code = nvmlDeviceGetCount_v2(&count);
    if (code) return code;
    if (index >= count || index >= 64) return INVALID_ARGUMENT;
    code = answer((int)index, __func__, value);
    if (code && code != NOT_SUPPORTED) return code;
    devices[index].index = (int)index;
    *handle = (device)&devices[index];
    return SUCCESS;
}

/* ------------------------------------------------------------------ one GPU */

#define TEXT(function) int function(device gpu, char *b, unsigned n) { return text(gpu->index, #function, b, n); }
#define NUMBER(function) int function(device gpu, unsigned *n) { return number(gpu->index, #function, n); }
#define KEYED_NUMBER(function) /* the description's value has one number per key */ \
    int function(device gpu, unsigned key, unsigned *n) { \
        unsigned long long all[8] = {0}; \
        int code = key < 8 ? numbers(gpu->index, #function, (int)key + 1, all) : INVALID_ARGUMENT; \
        if (!code) *n = (unsigned)all[key]; \
        return code; \
    }
#define PAIR(function) \
    int function(device gpu, unsigned *a, unsigned *b) { \
        unsigned long long both[2] = {0}; \
        int code = numbers(gpu->index, #function, 2, both); \
        if (!code) { *a = (unsigned)both[0]; *b = (unsigned)both[1]; } \
        return code; \
    }
#define PROCESSES(function) /* the description's value is "PID BYTES PID BYTES ..." */ \
    int function(device gpu, unsigned *count, process *found) { \
        unsigned long long all[64] = {0}; \
        unsigned there = 0; \
        int code = numbers(gpu->index, #function, 64, all); \
        if (code) return code; \
        while (there < 32 && all[2 * there]) there++; \
        if (there && *count < there) { *count = there; return INSUFFICIENT_SIZE; } \
        for (unsigned i = 0; i < there; i++) { \
            process one = {(unsigned)all[2 * i], all[2 * i + 1], ~0u, ~0u}; \
            found[i] = one; \
        } \
        *count = there; \
        return SUCCESS; \
    }

TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetSerial)
NUMBER(nvmlDeviceGetComputeMode)
NUMBER(nvmlDeviceGetPersistenceMode)
NUMBER(nvmlDeviceGetPowerUsage)
NUMBER(nvmlDeviceGetEnforcedPowerLimit)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth)
KEYED_NUMBER(nvmlDeviceGetTemperature)
KEYED_NUMBER(nvmlDeviceGetTemperatureThreshold)
KEYED_NUMBER(nvmlDeviceGetClockInfo)
KEYED_NUMBER(nvmlDeviceGetMaxClockInfo)
KEYED_NUMBER(nvmlDeviceGetApplicationsClock)
KEYED_NUMBER(nvmlDeviceGetDefaultApplicationsClock)
NUMBER(nvmlDeviceGetPerformanceState)
NUMBER(nvmlDeviceGetPcieReplayCounter)
PAIR(nvmlDeviceGetCudaComputeCapability)
PAIR(nvmlDeviceGetEccMode)

int nvmlDeviceGetUtilizationRates(device gpu, unsigned *gpu_and_memory) {
    unsigned long long both[2] = {0};
    int code = numbers(gpu->index, __func__, 2, both);
    if (!code) { gpu_and_memory[0] = (unsigned)both[0]; gpu_and_memory[1] = (unsigned)both[1]; }
    return code;
}

/* The description's value is "VOLATILE AGGREGATE" of uncorrected errors in SRAM; other places have none. */
int nvmlDeviceGetMemoryErrorCounter(device gpu, unsigned kind, unsigned counter, unsigned place, unsigned long long *n) {
    unsigned long long all[2] = {0};
    int code = kind == 1 && place == 7 ? numbers(gpu->index, __func__, 2, all) : NOT_SUPPORTED;
    if (!code) *n = all[counter & 1];
    return code;
}

/* The description's value is "POLICY NANOSECONDS". */
int nvmlDeviceGetViolationStatus(device gpu, unsigned policy, unsigned long long *reference_and_violation) {
    unsigned long long both[2] = {0};
    int code = numbers(gpu->index, __func__, 2, both);
    if (!code) { reference_and_violation[0] = 0; reference_and_violation[1] = both[0] == policy ? both[1] : 0; }
    return code;
}

static void pci_info(const char *id, char *info) {
    unsigned domain = 0, bus = 0, slot = 0;
    sscanf(id, "%x:%x:%x", &domain, &bus, &slot);
    struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } out = {0};
    snprintf(out.legacy, sizeof out.legacy, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff, slot & 0xff);
    out.domain = domain, out.bus = bus, out.device = slot;
    strcpy(out.bus_id, id);
    memcpy(info, &out, sizeof out);
}

int nvmlDeviceGetPciInfo_v3(device gpu, char *info) {
    char id[32] = "";
    int code = text(gpu->index, __func__, id, sizeof id);
    if (!code) pci_info(id, info);
    return code;
}

int nvmlDeviceGetMemoryInfo(device gpu, unsigned long long *total_free_used) {
    return numbers(gpu->index, __func__, 3, total_free_used);
}

/* The description's value is "VOLATILE AGGREGATE" of uncorrected errors, then of corrected ones (0 where left out). */
int nvmlDeviceGetTotalEccErrors(device gpu, unsigned kind, unsigned counter, unsigned long long *count) {
    unsigned long long all[4] = {0};
    int code = numbers(gpu->index, __func__, 4, all);
    if (!code) *count = all[(kind == 1 ? 0 : 2) + (counter & 1)];
    return code;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *mask) {
    return numbers(gpu->index, __func__, 1, mask);
}

#if DRIVER >= 450
PAIR(nvmlDeviceGetMigMode)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)

int nvmlDeviceGetRemappedRows(device gpu, unsigned *a, unsigned *b, unsigned *pending, unsigned *failure) {
    unsigned long long all[4] = {0};
    int code = numbers(gpu->index, __func__, 4, all);
    if (!code) { *a = (unsigned)all[0]; *b = (unsigned)all[1]; *pending = (unsigned)all[2]; *failure = (unsigned)all[3]; }
    return code;
}
#endif

#if DRIVER >= 470
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration)
#endif

#if DRIVER >= 550
int nvmlDeviceGetSramEccErrorStatus(device gpu, void *status) {
    struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } *out = status;
    return number(gpu->index, __func__, &out->exceeded);
}
#endif

#if DRIVER >= 560
int nvmlDeviceGetMarginTemperature(device gpu, void *margin) {
    struct { unsigned version; int margin; } *out = margin;
    unsigned long long degrees = 0;
    int code = numbers(gpu->index, __func__, 1, &degrees);
    if (!code) out->margin = (int)degrees;
    return code;
}
#endif

#if DRIVER >= 510
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

/* The description's value is "TOTAL RESERVED FREE USED". */
int nvmlDeviceGetMemoryInfo_v2(device gpu, void *info) {
    struct { unsigned version; unsigned long long total, reserved, free, used; } *out = info;
    return numbers(gpu->index, __func__, 4, &out->total);
}
#endif

#if DRIVER >= 535
int nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *mask) {
    return numbers(gpu->index, __func__, 1, mask);
}
#endif

/* ------------------------------------------------------------------ NVLink, fabric, peers */

/* The description's value has one word per link; a link beyond the last is an invalid argument. */
static int of_link(int index, const char *function, unsigned link, char *word) {
    char value[LINE], *rest = value, *next;
    int code = answer(index, function, value);
    if (!initialised) return UNINITIALIZED;
    if (code) return code;
    while ((next = strtok_r(rest, " ", &rest)))
        if (!link--) { snprintf(word, 32, "%s", next); return SUCCESS; }
    return INVALID_ARGUMENT;
}

#define LINK_NUMBER(function) \
    int function(device gpu, unsigned link, unsigned *n) { \
        char word[32]; \
        int code = of_link(gpu->index, #function, link, word); \
        if (!code) *n = (unsigned)strtoul(word, NULL, 10); \
        return code; \
    }

LINK_NUMBER(nvmlDeviceGetNvLinkState)

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device gpu, unsigned link, char *info) {
    char word[32];
    int code = of_link(gpu->index, __func__, link, word);
    if (!code) pci_info(word, info);
    return code;
}

/* The description's value is "REPLAY RECOVERY CRC_FLIT CRC_DATA", the same for every link. */
int nvmlDeviceGetNvLinkErrorCounter(device gpu, unsigned link, unsigned counter, unsigned long long *count) {
    unsigned long long all[4] = {0};
    int code = counter < 4 ? numbers(gpu->index, __func__, 4, all) : INVALID_ARGUMENT;
    (void)link;
    if (!code) *count = all[counter];
    return code;
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    int code;
    unsigned long long value;
} field_value;

/* The description's value is words FIELD=NUMBER, for every scope, or FIELD.SCOPE=NUMBER, which goes first. */
int nvmlDeviceGetFieldValues(device gpu, int count, field_value *values) {
    char all[LINE + 1] = " ", word[48], *found;
    int code = answer(gpu->index, __func__, all + 1);
    if (!initialised) return UNINITIALIZED;
    if (code) return code;
    for (int i = 0; i < count; i++) {
        snprintf(word, sizeof word, " %u.%u=", values[i].field, values[i].scope);
        if (!(found = strstr(all, word))) {
            snprintf(word, sizeof word, " %u=", values[i].field);
            found = strstr(all, word);
        }
        values[i].code = found ? SUCCESS : NOT_SUPPORTED;
        values[i].type = 3; /* unsigned long long */
        values[i].value = found ? strtoull(strchr(found, '=') + 1, NULL, 10) : 0;
    }
    return SUCCESS;
}

/* The description's value has one status for each other GPU, by its index. */
int nvmlDeviceGetP2PStatus(device gpu, device other, unsigned caps, unsigned *status) {
    char word[32];
    int code = of_link(gpu->index, __func__, (unsigned)other->index, word);
    (void)caps;
    if (!code) *status = (unsigned)strtoul(word, NULL, 10);
    return code;
}

#if DRIVER >= 470
LINK_NUMBER(nvmlDeviceGetNvLinkRemoteDeviceType)
#endif

#if DRIVER >= 530
/* The description's value is "STATE STATUS CLIQUE MASK SUMMARY BYTE", BYTE being every byte of the cluster's UUID. */
static int fabric(int index, unsigned long long *all) { return numbers(index, "nvmlDeviceGetGpuFabricInfo", 6, all); }

int nvmlDeviceGetGpuFabricInfo(device gpu, void *info) {
    struct { unsigned char uuid[16]; int status; unsigned clique; unsigned char state; } *out = info;
    unsigned long long all[6] = {0};
    int code = fabric(gpu->index, all);
    if (code) return code;
    memset(out->uuid, (int)all[5], sizeof out->uuid);
    out->state = (unsigned char)all[0], out->status = (int)all[1], out->clique = (unsigned)all[2];
    return SUCCESS;
}
#endif

#if DRIVER >= 550
int nvmlDeviceGetGpuFabricInfoV(device gpu, void *info) {
    struct {
        unsigned version;
        unsigned char uuid[16];
        int status;
        unsigned clique;
        unsigned char state;
        unsigned mask;
        unsigned char summary;
    } *out = info;
    unsigned long long all[6] = {0};
    int code = fabric(gpu->index, all), third = out->version == 0x3000028;
    if (code) return code;
    if (third ? DRIVER < 570 : out->version != 0x2000024) return 25; /* argument version mismatch */
    memset(out->uuid, (int)all[5], sizeof out->uuid);
    out->state = (unsigned char)all[0], out->status = (int)all[1], out->clique = (unsigned)all[2];
    out->mask = (unsigned)all[3];
    if (third) out->summary = (unsigned char)all[4];
    return SUCCESS;
}
#endif
