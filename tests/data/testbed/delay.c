/* Holds every IP packet between two TUN devices for a fixed time: `delay NAME_A NAME_B MICROSECONDS`.
 *
 * For kernels without netem. One queue per direction, in order; the wait between packets is a ppoll with the time to
 * the next one that is due. Says "ready" once both devices exist; ends when it is killed, and the devices with it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 1 << 15, LARGEST = 65536, BURST = 64 }; /* a full queue drops, as a router would */

struct packet { uint64_t due_ns; uint32_t bytes; unsigned char *data; };
struct queue { struct packet slots[SLOTS]; uint32_t head, tail; }; /* head: the oldest */

static struct queue queues[2];
static unsigned char scratch[LARGEST];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int open_tun(const char *name) {
    struct ifreq request;
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    memset(&request, 0, sizeof request);
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) < 0) {
        fprintf(stderr, "cannot make the device %s: %s\n", name, strerror(errno));
        exit(1);
    }
    return fd;
}

static void take(int fd, struct queue *queue, uint64_t delay_ns) {
    for (int n = 0; n < BURST; n++) {
        ssize_t bytes = read(fd, scratch, sizeof scratch);
        if (bytes <= 0 || queue->tail - queue->head == SLOTS) return;
        struct packet *slot = &queue->slots[queue->tail % SLOTS];
        slot->data = malloc((size_t)bytes);
        if (!slot->data) return;
        memcpy(slot->data, scratch, (size_t)bytes);
        slot->bytes = (uint32_t)bytes;
        slot->due_ns = now_ns() + delay_ns;
        queue->tail++;
    }
}

static void deliver(int fd, struct queue *queue) {
    while (queue->head != queue->tail) {
        struct packet *slot = &queue->slots[queue->head % SLOTS];
        if (slot->due_ns > now_ns()) return;
        if (write(fd, slot->data, slot->bytes) < 0 && errno == EAGAIN) return;
        free(slot->data); /* a packet the device refuses (it is down) is lost */
        queue->head++;
    }
}

static uint64_t next_due_ns(void) {
    uint64_t due = UINT64_MAX;
    for (int side = 0; side < 2; side++) {
        struct queue *queue = &queues[side];
        if (queue->head != queue->tail && queue->slots[queue->head % SLOTS].due_ns < due)
            due = queue->slots[queue->head % SLOTS].due_ns;
    }
    return due;
}

int main(int count, char **words) {
    if (count != 4) { fprintf(stderr, "usage: delay NAME_A NAME_B MICROSECONDS\n"); return 2; }
    uint64_t delay_ns = strtoull(words[3], NULL, 10) * 1000u;
    struct pollfd ends[2] = {{open_tun(words[1]), POLLIN, 0}, {open_tun(words[2]), POLLIN, 0}};
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        uint64_t due = next_due_ns(), now = now_ns(), left = due <= now ? 0 : due - now;
        struct timespec wait = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        if (ppoll(ends, 2, due == UINT64_MAX ? NULL : &wait, NULL) < 0 && errno != EINTR) return 1;
        for (int side = 0; side < 2; side++) {
            if (ends[side].revents & POLLIN) take(ends[side].fd, &queues[side], delay_ns);
            deliver(ends[!side].fd, &queues[side]);
        }
    }
}
