// A slow wire between two network namespaces, for kernels without netem: wire NAMESPACE NAMESPACE MBIT ONE_WAY_US
//
// Each namespace gets a TUN device "wire0". A packet sent into one leaves the other after it has passed a line of the
// given rate and then the one-way delay. At most 8 MB of packets queue before the line; further ones are dropped. The
// program prints "ready" once both devices exist, and runs until it is killed.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 4096, SLOT_BYTES = 9216, BATCH = 64 };
static const int64_t QUEUE_BYTES = 8000000, SECOND = 1000000000;

struct packet {
  int64_t due;
  int length;
  char bytes[SLOT_BYTES];
};

// A ring of packets between one device and the other, in the order of their arrival.
struct direction {
  int from, to;
  int64_t line_free;
  unsigned head, tail;
  struct packet *ring;
};

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * SECOND + t.tv_nsec;
}

static void die(const char *what) {
  perror(what);
  exit(1);
}

static int open_device(const char *space) {
  char path[256];
  snprintf(path, sizeof path, "/var/run/netns/%s", space);
  int handle = open(path, O_RDONLY | O_CLOEXEC);
  if (handle < 0 || setns(handle, CLONE_NEWNET)) die(path);
  close(handle);
  int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (device < 0) die("/dev/net/tun");
  struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
  strcpy(request.ifr_name, "wire0");
  if (ioctl(device, TUNSETIFF, &request)) die("TUNSETIFF");
  return device;
}

// Reads packets from the sending device; the line serves one packet after another.
static void take(struct direction *d, double bytes_per_ns, int64_t delay) {
  for (int i = 0; i < BATCH; i++) {
    struct packet scratch, *p = d->tail - d->head < SLOTS ? &d->ring[d->tail % SLOTS] : &scratch;
    int length = read(d->from, p->bytes, SLOT_BYTES);
    if (length <= 0) return;
    int64_t at = now(), start = d->line_free > at ? d->line_free : at;
    if (p == &scratch || (start - at) * bytes_per_ns > QUEUE_BYTES) continue;
    d->line_free = start + (int64_t)(length / bytes_per_ns);
    p->due = d->line_free + delay;
    p->length = length;
    d->tail++;
  }
}

// Writes packets that are due to the receiving device; returns the time at which the next packet is due.
static int64_t give(struct direction *d) {
  while (d->head != d->tail) {
    struct packet *p = &d->ring[d->head % SLOTS];
    if (p->due > now()) return p->due;
    if (write(d->to, p->bytes, p->length) < 0 && errno != EAGAIN && errno != EIO) die("write");
    d->head++;
  }
  return now() + SECOND;
}

int main(int count, char **words) {
  if (count != 5) {
    fprintf(stderr, "usage: wire NAMESPACE NAMESPACE MBIT ONE_WAY_US\n");
    return 2;
  }
  double bytes_per_ns = atof(words[3]) * 1e6 / 8 / SECOND;
  int64_t delay = atoll(words[4]) * 1000;
  int one = open_device(words[1]), other = open_device(words[2]);
  struct direction ways[2] = {{.from = one, .to = other}, {.from = other, .to = one}};
  for (int i = 0; i < 2; i++)
    if (!(ways[i].ring = calloc(SLOTS, sizeof(struct packet)))) die("calloc");
  prctl(PR_SET_TIMERSLACK, 1000);
  puts("ready");
  fflush(stdout);
  for (;;) {
    int64_t next = give(&ways[0]), second = give(&ways[1]), left;
    if (second < next) next = second;
    left = next - now();
    if (left < 0) left = 0;
    struct timespec wait = {left / SECOND, left % SECOND};
    struct pollfd in[2] = {{.fd = one, .events = POLLIN}, {.fd = other, .events = POLLIN}};
    ppoll(in, 2, &wait, NULL);
    for (int i = 0; i < 2; i++)
      if (in[i].revents & POLLIN) take(&ways[i], bytes_per_ns, delay);
  }
}
