/* A libnvidia-ml of two GPUs that a test can make lose one, or be an old driver (-DOLD).

Energy grows by 1 J (GPU 0) and 2 J (GPU 1) with every question for it. */
#include <stddef.h>
#include <string.h>

int fake_init = 0;  /* what nvmlInit_v2 answers */
int fake_gpus = 2;
int fake_lost = -1; /* the number of a GPU that has fallen off the bus */
int fake_open = 0;  /* nvmlInit_v2 without nvmlShutdown */

static unsigned long long energy[2] = {1000000, 5000000};
static const char *names[2] = {"NVIDIA H100 80GB HBM3", "NVIDIA L4"};
static const char *uuids[2] = {"GPU-aaaa", "GPU-bbbb"};

static int number(void *device) { return (int)((char *)device - (char *)0x1000); }
static int lost(void *device) { return number(device) == fake_lost ? 15 : 0; }

const char *nvmlErrorString(int code) {
  return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : "Unknown Error";
}
int nvmlInit_v2(void) { if (!fake_init) fake_open++; return fake_init; }
int nvmlShutdown(void) { fake_open--; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = fake_gpus; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) {
  *device = (char *)0x1000 + i;
  return 0;
}
int nvmlDeviceGetName(void *d, char *text, unsigned size) {
  strncpy(text, names[number(d)], size);
  return 0;
}
int nvmlDeviceGetUUID(void *d, char *text, unsigned size) {
  strncpy(text, uuids[number(d)], size);
  return 0;
}
int nvmlDeviceGetUtilizationRates(void *d, unsigned *use) {
  use[0] = number(d) ? 40 : 90;
  use[1] = 7;
  return lost(d);
}
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *total_free_used) {
  total_free_used[0] = 80ULL << 30;
  total_free_used[1] = 40ULL << 30;
  total_free_used[2] = 40ULL << 30;
  return lost(d);
}
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) {
  *mw = number(d) ? 60250 : 400500;
  return lost(d);
}
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *celsius) {
  if (sensor != 0) return 2;
  *celsius = number(d) ? 81 : 66;
  return lost(d);
}
#ifdef OLD
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *mj) { return 3; }
#else
struct memory2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *d, struct memory2 *m) {
  if (m->version != (sizeof(struct memory2) | 2 << 24)) return 25;
  m->total = number(d) ? 24ULL << 30 : 80ULL << 30;
  m->reserved = 1ULL << 30;
  m->used = number(d) ? 4ULL << 30 : 60ULL << 30;
  m->free = m->total - m->reserved - m->used;
  return lost(d);
}
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *mj) {
  if (lost(d)) return 15;
  *mj = energy[number(d)] += 1000 * (1 + number(d));
  return 0;
}
#endif
