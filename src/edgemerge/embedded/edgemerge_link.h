/* edgemerge_link.h: how a small device talks to `edgemerge bridge`, over a serial line or TCP.
 *
 * The device asks and the bridge answers. A frame is COBS-encoded and ends with a zero byte; inside
 * are a letter, at most EM_PAYLOAD bytes, and the CRC-32 of both, little-endian. A frame that is
 * damaged or lost is as good as none: the device waits in vain, and asks again later.
 *
 *   device                                 bridge
 *   H version, name                        N nonce (16)
 *   P HMAC-SHA256(token, nonce + name)     A
 *   B                                      (none; begins a contribution)
 *   D offset (4), bytes                    (none)
 *   E size (4), CRC-32 of all (4)          A
 *   T                                      S size (4), CRC-32 (4) of what others saw; 0: nothing
 *   G offset (4), size (1)                 C offset (4), bytes
 *   O score, level, limit (4 each, float), marks (1: ready, 2: alarm, 4: learnt),     (none)
 *     own samples, episodes, samples of others (4 each)
 *
 * Instead of an answer the bridge may say R status (1), newest revision (4; of a stale one): later,
 * refused, stale, broken (send it again), unknown (say hello first, as after its restart).
 *
 *   static em_link link = {send_bytes, next_byte, NULL, "pump-3", token};
 *   em_link_share(&link, &device, "normal");
 *   em_link_pull(&link, &device, buffer, sizeof buffer);
 */
#ifndef EDGEMERGE_LINK_H
#define EDGEMERGE_LINK_H

#include "edgemerge.h"

#define EM_LINK_VERSION 1
#define EM_PAYLOAD 240 /* so that a frame is one COBS block */
#define EM_TRIES 4     /* of one question */

enum {
    EM_NO_ANSWER = -16, /* the bridge is silent */
    EM_LATER = -17,     /* the bridge cannot reach the fleet now, or does not know this device yet */
    EM_REFUSED = -18,   /* the fleet does not want it, or the token is wrong */
    EM_NOTHING = -19    /* the fleet has nothing from others */
};

enum { EM_STATUS_OK, EM_STATUS_LATER, EM_STATUS_REFUSED, EM_STATUS_STALE, EM_STATUS_BROKEN,
       EM_STATUS_UNKNOWN };

typedef struct {
    em_write write; /* sends bytes */
    int (*read)(void *context, uint8_t *byte); /* the next byte; not 0 if none comes in time */
    void *context;
    const char *name;  /* of this device in its fleet */
    const char *token; /* from enrolling; it is never sent */
    uint8_t known;     /* the bridge knows who this is */
    uint8_t frame[EM_PAYLOAD + 7]; /* place for the COBS code, letter, payload, CRC, zero */
    uint16_t size;     /* of the payload so far, or of the one that was received */
    uint32_t offset;   /* in what is being sent */
    uint32_t crc;
} em_link;

static inline uint32_t em_crc32(const uint8_t *bytes, size_t size) {
    em_stream sum = {0};
    sum.crc = 0xFFFFFFFFu;
    em_put(&sum, bytes, size);
    return ~sum.crc;
}

static inline void em_put32(uint8_t *to, uint32_t number) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(number >> (8 * i));
}

static inline uint8_t *em_payload(em_link *link) { return link->frame + 2; }

static inline int em_link_send(em_link *link, char letter) {
    /* send the payload that is in the frame */
    uint8_t *f = link->frame;
    unsigned end = 2u + link->size, last = 0;
    f[1] = (uint8_t)letter;
    em_put32(f + end, em_crc32(f + 1, end - 1));
    end += 4;
    for (unsigned i = 1; i < end; i++) /* each zero becomes the distance to the next one */
        if (!f[i]) {
            f[last] = (uint8_t)(i - last);
            last = i;
        }
    f[last] = (uint8_t)(end - last);
    f[end++] = 0;
    link->size = 0;
    return link->write(link->context, f, end) ? EM_WRITE_FAILED : EM_OK;
}

static inline int em_link_decode(em_link *link, unsigned size) {
    /* a frame without its zero, in place; 0 if it is damaged */
    uint8_t *f = link->frame;
    unsigned at = 0;
    if (size < 6) return 0;
    while (at < size) {
        unsigned code = f[at];
        if (!code || at + code > size) return 0;
        f[at] = 0;
        at += code;
    }
    size -= 5; /* letter and payload are left */
    if (em_crc32(f + 1, size) != em_read32(f + 1 + size)) return 0;
    link->size = (uint16_t)(size - 1);
    return f[1];
}

static inline int em_link_receive(em_link *link, char letter) {
    /* wait for a frame with this letter, or for one that says how things stand */
    unsigned size = 0;
    uint8_t byte;
    /* a line that is noisy and never silent is given up */
    for (unsigned frames = 0, bytes = 0; frames < 16 && bytes < 16 * sizeof link->frame; bytes++) {
        if (link->read(link->context, &byte)) return EM_NO_ANSWER;
        if (byte) {
            if (size < sizeof link->frame) link->frame[size++] = byte;
            continue;
        }
        int found = size < sizeof link->frame ? em_link_decode(link, size) : 0;
        size = 0;
        frames++;
        if (found == letter) return EM_OK;
        if (found == 'R' && link->size >= 1) {
            uint8_t status = em_payload(link)[0];
            if (status == EM_STATUS_UNKNOWN) link->known = 0;
            return status == EM_STATUS_REFUSED ? EM_REFUSED : EM_LATER;
        }
    }
    return EM_NO_ANSWER;
}

static inline void em_link_prove(const em_link *link, const uint8_t *nonce, uint8_t *proof) {
    /* HMAC-SHA256 of the nonce and the name, with the token as key */
    uint8_t key[64] = {0}, digest[32];
    size_t length = strlen(link->token);
    em_sha256 hash;
    if (length <= 64) memcpy(key, link->token, length);
    else {
        em_sha256_begin(&hash);
        (void)em_sha256_add(&hash, link->token, length);
        em_sha256_end(&hash, key);
    }
    for (int outer = 0; outer < 2; outer++) {
        em_sha256_begin(&hash);
        for (int i = 0; i < 64; i++) {
            uint8_t byte = (uint8_t)(key[i] ^ (outer ? 0x5C : 0x36));
            (void)em_sha256_add(&hash, &byte, 1);
        }
        if (outer) (void)em_sha256_add(&hash, digest, 32);
        else {
            (void)em_sha256_add(&hash, nonce, 16);
            (void)em_sha256_add(&hash, link->name, strlen(link->name));
        }
        em_sha256_end(&hash, outer ? proof : digest);
    }
}

/* Tell the bridge who this is, and prove it. The others do so when it is needed. */
static inline int em_link_hello(em_link *link) {
    size_t length = strlen(link->name);
    uint8_t nonce[16];
    int error = EM_OK;
    link->known = 0;
    if (length > EM_PAYLOAD - 1) return EM_REFUSED;
    for (int tries = 0; tries < EM_TRIES; tries++) {
        em_payload(link)[0] = EM_LINK_VERSION;
        memcpy(em_payload(link) + 1, link->name, length);
        link->size = (uint16_t)(1 + length);
        if ((error = em_link_send(link, 'H')) || (error = em_link_receive(link, 'N')) == EM_REFUSED)
            return error;
        if (error || link->size != sizeof nonce) continue;
        memcpy(nonce, em_payload(link), sizeof nonce);
        em_link_prove(link, nonce, em_payload(link));
        link->size = 32;
        if ((error = em_link_send(link, 'P'))) return error;
        error = em_link_receive(link, 'A');
        if (!error) link->known = 1;
        if (!error || error == EM_REFUSED) return error;
    }
    return error ? error : EM_NO_ANSWER;
}

static inline int em_link_collect(void *context, const void *bytes, size_t size) {
    /* cut a stream into frames */
    em_link *link = (em_link *)context;
    const uint8_t *from = (const uint8_t *)bytes;
    em_stream sum = {0};
    sum.crc = link->crc;
    em_put(&sum, bytes, size);
    link->crc = sum.crc;
    while (size) {
        if (!link->size) {
            em_put32(em_payload(link), link->offset);
            link->size = 4;
        }
        size_t some = EM_PAYLOAD - (size_t)link->size;
        if (some > size) some = size;
        memcpy(em_payload(link) + link->size, from, some);
        link->size = (uint16_t)(link->size + some);
        link->offset += (uint32_t)some;
        from += some;
        size -= some;
        if (link->size == EM_PAYLOAD && em_link_send(link, 'D')) return 1;
    }
    return 0;
}

static inline int em_link_stream(em_link *link, em_device *d, const char *pattern,
                                 const char *fault) {
    int error = link->known ? EM_OK : em_link_hello(link);
    for (int tries = 0; tries < 2 && !error; tries++) {
        link->size = 0;
        link->offset = 0;
        link->crc = 0xFFFFFFFFu;
        if ((error = em_link_send(link, 'B'))) break;
        error = fault ? em_share_fault(d, link->name, fault, em_link_collect, link)
                      : em_share(d, link->name, pattern, em_link_collect, link);
        if (!error && link->size) error = em_link_send(link, 'D');
        if (error) break;
        em_put32(em_payload(link), link->offset);
        em_put32(em_payload(link) + 4, ~link->crc);
        link->size = 8;
        if ((error = em_link_send(link, 'E'))) break;
        error = em_link_receive(link, 'A');
        if (tries || error != EM_LATER || em_payload(link)[0] != EM_STATUS_STALE || link->size != 5)
            break;
        d->revision = em_read32(em_payload(link) + 1); /* from before this device lost its state */
        error = EM_OK;
    }
    return error;
}

/* Send what this device saw itself to the fleet. EM_LATER: nothing is lost, send it again later. */
static inline int em_link_share(em_link *link, em_device *d, const char *pattern) {
    return em_link_stream(link, d, pattern, NULL);
}

/* Send the pattern that is kept as a fault with this name. */
static inline int em_link_share_fault(em_link *link, em_device *d, const char *name) {
    return em_link_stream(link, d, NULL, name);
}

/* Fetch what the others saw into `memory`, and adopt it. What is adopted is read in place: if it
 * was fetched into the same memory, it is taken back first, and the device scores by its own
 * samples until the new one is there. */
static inline int em_link_pull(em_link *link, em_device *d, uint8_t *memory, size_t bytes) {
    int error = link->known ? EM_OK : em_link_hello(link);
    uint32_t size = 0, crc = 0, at = 0;
    link->size = 0; /* of an answer before */
    if (!error) error = em_link_send(link, 'T');
    if (!error) error = em_link_receive(link, 'S');
    if (error) return error;
    if (link->size != 8) return EM_NO_ANSWER;
    size = em_read32(em_payload(link));
    crc = em_read32(em_payload(link) + 4);
    if (!size) return EM_NOTHING;
    if (size > bytes) return EM_TOO_SMALL;
    if (d->others >= memory && d->others < memory + bytes) (void)em_adopt(d, NULL, 0);
    for (int tries = 0; at < size;) {
        uint32_t some = size - at < EM_PAYLOAD - 4 ? size - at : EM_PAYLOAD - 4;
        em_put32(em_payload(link), at);
        em_payload(link)[4] = (uint8_t)some;
        link->size = 5;
        if ((error = em_link_send(link, 'G'))) return error;
        error = em_link_receive(link, 'C');
        if (!error && link->size == 4 + some && em_read32(em_payload(link)) == at) {
            memcpy(memory + at, em_payload(link) + 4, some);
            at += some;
            tries = 0;
        } else if (++tries == EM_TRIES) {
            return error ? error : EM_NO_ANSWER;
        }
    }
    if (em_crc32(memory, size) != crc) return EM_LATER;
    return em_adopt(d, memory, size);
}

/* Tell how things are: the bridge hands it on. It is sent once, and is no matter if it is lost. */
static inline int em_link_report(em_link *link, const em_device *d, const em_result *result) {
    int error = link->known ? EM_OK : em_link_hello(link);
    uint32_t words[3];
    if (error) return error;
    memcpy(words, &result->score, 4);
    memcpy(words + 1, &result->level, 4);
    memcpy(words + 2, &d->limit, 4);
    for (int i = 0; i < 3; i++) em_put32(em_payload(link) + 4 * i, words[i]);
    em_payload(link)[12] = (uint8_t)(result->ready | result->alarm << 1 | result->learnt << 2);
    em_put32(em_payload(link) + 13, (uint32_t)d->own.count);
    em_put32(em_payload(link) + 17, d->episodes);
    em_put32(em_payload(link) + 21,
             (uint32_t)(d->others_count >> (2 * d->projection->grid_bits)));
    link->size = 25;
    return em_link_send(link, 'O');
}

#endif
