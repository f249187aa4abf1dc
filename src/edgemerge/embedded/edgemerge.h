/* edgemerge.h: an edgemerge device in C99, for microcontrollers. Version 1.
 *
 * One header, no allocation, no libm, no stdio. Sums are int64 counts of quanta of 2^-2g, so they
 * equal those of Python to the last bit, and so do the bytes that a device shares. P and the
 * readout B are floating point (float, or double with EM_DOUBLE) and only a cache: every
 * EM_SOLVE_EVERY samples they are solved afresh from the sums, and B is refined once against them.
 *
 * Labels M1 to M11 are those of docs/maths.md. Shapes: x (n), h (N), U (N, N) as its upper
 * triangle row by row, V (N, n), C (n), S (n), P like U, B (N, n).
 *
 *   #include "pump.h"                              written by `edgemerge export --c`
 *   static uint64_t memory[EM_WORDS(PUMP_N, PUMP_HIDDEN)];
 *   em_device device;
 *   em_init(&device, &pump_projection, memory, sizeof memory);
 *   em_result result;
 *   em_take(&device, readings, &result);           result.alarm, result.score
 *
 * Every function that can fail returns EM_OK or an error, and then has changed no sum and nothing
 * that is adopted, kept or saved.
 */
#ifndef EDGEMERGE_H
#define EDGEMERGE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef EM_DOUBLE
typedef double em_real;
#else
typedef float em_real;
#endif

#ifndef EM_SOLVE_EVERY
#define EM_SOLVE_EVERY 256 /* samples, at most 65535 */
#endif

/* Readings become the steps that Python has only if double is a float64, unlike on AVR. */
typedef char em_double_must_have_64_bits[sizeof(double) == 8 && EM_SOLVE_EVERY < 65536 ? 1 : -1];

enum {
    EM_OK = 0,
    EM_TOO_SMALL = -1,    /* the memory has fewer than EM_BYTES(n, N) bytes, or is not aligned */
    EM_NOT_FINITE = -2,   /* a reading is NaN or infinite */
    EM_FULL = -3,         /* a sum would not be exact any more: share, and start again */
    EM_BAD_BYTES = -4,    /* received bytes are truncated, not canonical, or not on the grid */
    EM_OTHER_FLEET = -5,  /* received bytes were made with another projection */
    EM_CORRUPT = -6,      /* no saved state is whole */
    EM_WRITE_FAILED = -7, /* the caller's function refused bytes */
    EM_BAD_TABLE = -8     /* the fingerprint does not fit the constants */
};

enum { EM_IDENTITY, EM_SIGMOID, EM_TANH, EM_RELU, EM_COSINE };

#define EM_VERSION 1
#define EM_VOTES 3       /* an episode begins when so many */
#define EM_OF 5          /* of the last so many scores are above the limit */
#define EM_BLOCK 8       /* odd samples that join a pattern together */
#define EM_WAITING 2     /* odd samples that wait: with one more there is an episode */
#define EM_MAX_ODD 4     /* times the limit: an isolated sample above it is not learnt */
#define EM_TOO_ODD 128   /* marks the age of an isolated sample that is not learnt */
#define EM_FAR 256       /* half-ranges: readings further out are clipped */
#define EM_EXACT ((int64_t)1 << 53)         /* quanta up to which sums are exact in Python, too */
#define EM_FAR_HIDDEN ((int64_t)1 << 26) /* steps, whose square is half of that */

/* A whole number r becomes (r * gain + shift) / 2^bits steps, by integers alone. */
typedef struct {
    int64_t shift;
    int32_t gain;  /* 0: the range is so far off that it takes doubles */
    uint8_t bits;
    uint8_t exact; /* gain and shift are not rounded */
} em_integer_map;

/* What weights are drawn from, with SplitMix64. */
typedef struct {
    uint64_t seed;
    double width, bias_width; /* times 2^weight_bits */
    const uint64_t *keys;     /* (n): of inputs that have names, else NULL */
    int32_t *A, *b;           /* where em_draw puts them */
} em_source;

/* The constants of a projection, as `edgemerge export --c` writes them: they can stay in flash. */
typedef struct {
    uint16_t n, N;
    uint8_t grid_bits;   /* g: samples and hidden values are counts of 2^-g */
    uint8_t weight_bits; /* A and b are counts of 2^-weight_bits */
    uint8_t activation;
    const int32_t *A; /* (n, N) */
    const int32_t *b; /* (N) */
    const uint32_t *negative_zeros; /* places in A, then b, of weights that are -0 */
    uint32_t n_negative_zeros;
    const double *gain, *shift; /* (n): a reading r becomes r * gain + shift steps */
    const double *low, *high;   /* (n) */
    /* A bounded activation rises or falls by at most one step a grid point: bit i of `rises` says
     * whether it changes at point i + 1, and `ranks` counts the changes before each 256 points. */
    const uint8_t *rises;
    const uint32_t *ranks;
    int32_t n_points;   /* of the table */
    int32_t first;      /* the value at its start */
    float ridge;        /* times the mean of diag(U) */
    float loss_share;   /* of the score */
    const char *words;       /* activation, bits and names, as the fingerprint has them */
    uint16_t words_length;
    const char *fingerprint; /* 64 hexadecimal digits */
    const char *settings;    /* JSON text, escaped as it stands in a header */
    const char *tensors;     /* the end of a header */
    const em_integer_map *integers; /* (n): the same as gain and shift */
    const em_source *source;        /* of weights that em_draw draws; NULL: A and b are a table */
} em_projection;

#define EM_PACKED(N) ((size_t)(N) * ((size_t)(N) + 1) / 2)
#define EM_SUMS(n, N) (EM_PACKED(N) + (size_t)(N) * (n) + 2 * (size_t)(n)) /* U, V, C, S */
#define EM_WORDS(n, N)                                                                            \
    (EM_SUMS(n, N) +                                                                              \
     EM_REALS(EM_PACKED(N) + (size_t)(N) * (n) + (size_t)(N) + EM_LONGER(n, N)) +                 \
     EM_INTS((EM_WAITING + 1) * (size_t)(n) + (size_t)(N)))
#define EM_LONGER(n, N) ((size_t)((n) > (N) ? (n) : (N)))
#define EM_PATTERN_WORDS(n, N)                                                                    \
    (EM_SUMS(n, N) + EM_REALS(3 * (size_t)(n)) + EM_INTS(EM_BLOCK * (size_t)(n)))
#define EM_PATTERN_BYTES(n, N) (8 * EM_PATTERN_WORDS(n, N))
#define EM_REALS(count) (((count) * sizeof(em_real) + 7) / 8)
#define EM_INTS(count) (((count) * 4 + 7) / 8)
#define EM_BYTES(n, N) (8 * EM_WORDS(n, N))

typedef struct {
    float score; /* how unusual the sample is, before it was learnt; 1 is usual. 0: not known yet */
    float level; /* the recent score that is held against the limit */
    uint8_t ready; /* enough is known; before that there is no alarm */
    uint8_t alarm; /* an episode is open */
    uint8_t learnt;
} em_result;

/* Sums that add up, in quanta. */
typedef struct {
    int64_t *U, *V, *C, *S;
    int64_t count;   /* samples */
    int64_t largest; /* at least the largest of diag(U), S and count, in quanta */
} em_sums;

struct em_device;
struct em_stream;

/* Odd samples of episodes, which were not learnt: em_keep_pattern gives it its memory. */
typedef struct {
    em_sums sums;
    void (*keep)(struct em_device *d, int odd); /* pointers: no code if no pattern is kept */
    void (*end)(struct em_device *d);
    void (*save)(const struct em_device *d, struct em_stream *to);
    void (*resume)(struct em_device *d, size_t place, uint64_t word);
    int32_t *rows;                      /* (EM_BLOCK, n) that are assigned together */
    em_real *mean, *direction, *scale;  /* (n): of residuals, in units of what is usual */
    float cosine, squares;              /* sums over its blocks, for what is coherent with it */
    uint16_t blocks;
    uint8_t n_rows;
    uint32_t left_out; /* samples of episodes that are unlike it */
} em_pattern;

typedef struct em_device {
    const em_projection *projection;
    em_sums own;            /* what this device has learnt */
    em_pattern *pattern;    /* what it has not learnt and waits for a review, or NULL */
    const uint8_t *others;  /* received arrays U, V, C, S as float64, or NULL */
    int64_t others_count;   /* in quanta of the count, as it was sent */
    em_real *P, *B, *g, *e; /* g has N numbers, e as many as the longer of x and h */
    int32_t *x, *h, *odd; /* the sample, its hidden values, and (EM_WAITING, n) odd ones that wait */
    em_real ridge, trace; /* of P */
    em_real asked;        /* the ridge for the sums; P may have needed a larger one */
    em_real J, norm;      /* of B: least squares with ridge, and |B|^2 */
    em_real squares, freedom; /* of B on own samples, once they set the scale */
    uint16_t steps;       /* since P was solved; EM_SOLVE_EVERY: it is due */
    uint8_t trace_bits;   /* of the sums: another ridge suits them when it changes */
    float limit;          /* of the alarm level; 4 unless set */
    uint32_t commissioning; /* samples that are learnt before it watches; 16 N unless set */
    float level, scores[EM_OF];
    uint8_t next, n_odd, ages[EM_WAITING], alarm;
    uint32_t episodes;
    uint32_t revision, incarnation;
    uint32_t saved; /* number of the last saved state */
} em_device;

/* ------------------------------------------------------------------ samples and hidden values */

static inline int64_t em_shift_to_even(int64_t value, unsigned bits) {
    /* value / 2^bits, rounded to the nearest whole number, ties to even */
    if (bits == 0) return value;
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    uint64_t part = (uint64_t)value & mask;
    uint64_t half = (uint64_t)1 << (bits - 1);
    int64_t rest = value - (int64_t)part; /* shifted by its size: a division takes long */
    uint64_t size = (rest < 0 ? 0 - (uint64_t)rest : (uint64_t)rest) >> bits;
    int64_t down = rest < 0 ? -(int64_t)size : (int64_t)size;
    return down + (part > half || (part == half && (down & 1)));
}

static inline int32_t em_round(double number) {
    /* to the nearest whole number, ties to even */
    int32_t found = (int32_t)number; /* towards 0 */
    double part = number - (double)found;
    if (part > 0.5 || (part == 0.5 && (found & 1))) found++;
    if (part < -0.5 || (part == -0.5 && (found & 1))) found--;
    return found;
}

static inline int32_t em_step(const em_projection *p, unsigned i, double reading) {
    const double far = (double)EM_FAR * (double)((uint32_t)1 << p->grid_bits);
    /* two statements: a fused multiply-add would round other readings than Python does */
    volatile double scaled = reading * p->gain[i];
    double steps = scaled + p->shift[i];
    return em_round(steps > far ? far : steps < -far ? -far : steps);
}

static inline int em_to_grid(const em_projection *p, const double *readings, int32_t *x) {
    for (unsigned i = 0; i < p->n; i++) {
        if (!(readings[i] - readings[i] == 0.0)) return EM_NOT_FINITE;
        x[i] = em_step(p, i, readings[i]);
    }
    return EM_OK;
}

static inline void em_integers_to_grid(const em_projection *p, const int32_t *readings,
                                       int32_t *x) {
    /* the same numbers as em_to_grid. Python rounds twice, in double: a sum that is so close to a
     * tie that this, or the rounding of gain and shift, might matter is left to doubles as well. */
    const int64_t far = (int64_t)EM_FAR << p->grid_bits;
    for (unsigned i = 0; i < p->n; i++) {
        const em_integer_map *map = p->integers + i;
        int64_t sum = (int64_t)readings[i] * map->gain + map->shift;
        int64_t slack = (readings[i] < 0 ? -(int64_t)readings[i] : readings[i]) + 1024;
        int64_t half = map->bits ? (int64_t)1 << (map->bits - 1) : 0;
        int64_t beyond = (int64_t)((uint64_t)sum & (2 * (uint64_t)half - (half != 0))) - half;
        if (map->gain && (map->exact || beyond > slack || beyond < -slack)) {
            int64_t steps = em_shift_to_even(sum, map->bits);
            x[i] = (int32_t)(steps > far ? far : steps < -far ? -far : steps);
        } else {
            x[i] = em_step(p, i, (double)readings[i]);
        }
    }
}

static inline uint32_t em_read32(const uint8_t *bytes) {
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static inline uint64_t em_read64(const uint8_t *bytes) {
    return em_read32(bytes) | (uint64_t)em_read32(bytes + 4) << 32;
}

static inline int32_t em_look_up(const em_projection *p, int32_t point) {
    /* the number of changes before a point of the table */
    uint32_t found = p->ranks[point >> 8];
    const uint8_t *rises = p->rises + (point >> 8) * 32;
    for (int32_t left = point & 255; left > 0; left -= 32, rises += 4) {
        uint32_t bits = em_read32(rises);
        if (left < 32) bits &= ((uint32_t)1 << left) - 1;
        bits -= bits >> 1 & 0x55555555; /* counts of two bits, then of four, of eight, of all */
        bits = (bits & 0x33333333) + (bits >> 2 & 0x33333333);
        found += ((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101u >> 24;
    }
    return (int32_t)found;
}

static inline int32_t em_activate(const em_projection *p, int64_t z) {
    /* M1: g(z), in steps of the grid */
    switch (p->activation) {
    case EM_IDENTITY:
        return (int32_t)z;
    case EM_RELU:
        return z > 0 ? (int32_t)z : 0;
    case EM_COSINE: { /* a quarter of the period is enough: cos(-z) = cos(z) = -cos(half - z) */
        int32_t period = (int32_t)8 << p->grid_bits;
        int32_t place = (int32_t)(z & (period - 1));
        if (place > period / 2) place = period - place;
        return place > period / 4 ? -(p->first - em_look_up(p, period / 2 - place))
                                  : p->first - em_look_up(p, place);
    }
    case EM_TANH: { /* tanh(-z) = -tanh(z) */
        int64_t size = z < 0 ? -z : z;
        int32_t found = em_look_up(p, size < p->n_points ? (int32_t)size : p->n_points);
        return z < 0 ? -found : found;
    }
    default: { /* sigmoid(-z) = 1 - sigmoid(z) */
        int64_t size = z < 0 ? -z : z;
        int32_t found = p->first + em_look_up(p, size < p->n_points ? (int32_t)size : p->n_points);
        return z < 0 ? (int32_t)((uint32_t)1 << p->grid_bits) - found : found;
    }
    }
}

static inline int em_project(const em_projection *p, const int32_t *x, int32_t *h) {
    for (unsigned j = 0; j < p->N; j++) {
        int64_t z = (int64_t)p->b[j] * ((int64_t)1 << p->grid_bits);
        const int32_t *A = p->A + j;
        for (unsigned i = 0; i < p->n; i++, A += p->N) z += (int64_t)x[i] * *A;
        z = em_shift_to_even(z, p->weight_bits);
        if (p->activation == EM_IDENTITY && z < -EM_FAR_HIDDEN) return EM_FULL;
        if ((p->activation == EM_IDENTITY || p->activation == EM_RELU) && z > EM_FAR_HIDDEN)
            return EM_FULL; /* others are bounded */
        h[j] = em_activate(p, z); /* M1 */
    }
    return EM_OK;
}

/* ------------------------------------------------------------------------------------- sums */

static inline size_t em_next(unsigned N, unsigned i, unsigned k) {
    /* how far (i, k + 1) is from (i, k) in the upper triangle: down the column, then along the row */
    return k < i ? N - k - 1 : 1;
}

static inline int em_quanta(uint64_t word, unsigned bits, int64_t *found) {
    /* a float64 in counts of 2^-bits; EM_BAD_BYTES unless it is a whole one below 2^53 */
    int exponent = (int)(word >> 52 & 2047) - 1075 + (int)bits;
    uint64_t size = word & (((uint64_t)1 << 52) - 1);
    if ((word << 1) == 0) {
        *found = 0;
        return word ? EM_BAD_BYTES : EM_OK; /* -0 is not canonical */
    }
    size |= (uint64_t)1 << 52;
    if (exponent > 0 || exponent < -52) return EM_BAD_BYTES;
    if (size & (((uint64_t)1 << -exponent) - 1)) return EM_BAD_BYTES;
    size >>= -exponent;
    *found = word >> 63 ? -(int64_t)size : (int64_t)size;
    return EM_OK;
}

static inline int64_t em_checked_quanta(const uint8_t *bytes, unsigned bits) {
    /* the same for a number that was checked when it was adopted, without a branch: it is the
     * innermost step of em_solve, and compilers then multiply what it returns as 32 bits twice */
    uint32_t upper = em_read32(bytes + 4), exponent = upper >> 20 & 2047;
    uint32_t digits = (upper & 0xFFFFF) | (uint32_t)(exponent != 0) << 20;
    uint64_t size = ((uint64_t)digits << 32 | em_read32(bytes)) >> ((1075 - bits - exponent) & 63);
    uint64_t sign = 0 - (uint64_t)(upper >> 31);
    return (int64_t)((size ^ sign) - sign);
}

static inline int64_t em_other(const em_device *d, size_t place) {
    /* a sum of others, but not of C; 0 if there is none */
    return d->others ? em_checked_quanta(d->others + 8 * place, 2u * d->projection->grid_bits) : 0;
}

static inline em_real em_unit(const em_projection *p) {
    /* one quantum: a power of two, so that multiplying by it is exact */
    return (em_real)1 / (em_real)((uint64_t)1 << (2 * p->grid_bits));
}

static inline int em_on_own_scale(const em_device *d) {
    return d->others && 10 * d->own.count >= 13 * (int64_t)d->projection->N;
}

static inline void em_count_largest(const em_projection *p, em_sums *to) {
    /* the bound that em_make_room follows is a rough one: look again */
    size_t at = 0;
    to->largest = to->count * ((int64_t)1 << (2 * p->grid_bits));
    for (unsigned i = 0; i < p->N; at += p->N - i++)
        if (to->U[at] > to->largest) to->largest = to->U[at];
    for (unsigned j = 0; j < p->n; j++)
        if (to->S[j] > to->largest) to->largest = to->S[j];
}

static inline int em_make_room(const em_device *d, em_sums *to) {
    /* EM_FULL unless the sample x with hidden values h fits into the sums */
    const em_projection *p = d->projection;
    unsigned n = p->n, N = p->N;
    int64_t h2 = 0, x2 = 0, one = (int64_t)1 << (2 * p->grid_bits);
    for (unsigned i = 0; i < N; i++) {
        int64_t square = (int64_t)d->h[i] * d->h[i];
        h2 = h2 > square ? h2 : square;
    }
    for (unsigned j = 0; j < n; j++) {
        int64_t square = (int64_t)d->x[j] * d->x[j];
        x2 = x2 > square ? x2 : square;
    }
    int64_t more = h2 > x2 ? h2 : x2;
    if (more < one) more = one;
    if (to->largest > EM_EXACT - 1 - more) em_count_largest(p, to);
    if (to->largest > EM_EXACT - 1 - more) return EM_FULL;
    to->largest += more;
    return EM_OK;
}

static inline void em_add(const em_device *d, em_sums *to) {
    /* add the sample x with hidden values h to sums: M2, M10 */
    unsigned n = d->projection->n, N = d->projection->N;
    int64_t *U = to->U, *V = to->V;
    for (unsigned i = 0; i < N; i++) {
        for (unsigned j = i; j < N; j++) *U++ += (int64_t)d->h[i] * d->h[j];
        for (unsigned j = 0; j < n; j++) *V++ += (int64_t)d->h[i] * d->x[j];
    }
    for (unsigned j = 0; j < n; j++) {
        to->C[j] += d->x[j];
        to->S[j] += (int64_t)d->x[j] * d->x[j];
    }
    to->count++;
}

/* ---------------------------------------------------------------------------------- readout */

static inline unsigned em_trace_bits(const em_device *d) {
    /* the least k for which N * 2^k quanta are no less than the trace of U */
    unsigned N = d->projection->N, bits = 0, own = (unsigned)em_on_own_scale(d);
    uint64_t trace = 0, most = N;
    size_t at = 0;
    for (unsigned i = 0; i < N; at += N - i++)
        trace += (uint64_t)(d->own.U[at] + (own ? 0 : em_other(d, at)));
    for (; most < trace; most *= 2) bits++;
    return bits;
}

static inline em_real em_ridge(const em_projection *p, unsigned bits) {
    /* small against U, in powers of two, as in Python */
    em_real least = (em_real)p->N * em_unit(p), found = (em_real)p->ridge * em_unit(p);
    while (bits--) found *= 2;
    return found > least ? found : least;
}

static inline int em_sweep(em_device *d, em_real ridge) {
    /* P = (U + ridge I)^-1 on one triangle, without a square root; 0 if a pivot is not positive */
    unsigned N = d->projection->N;
    size_t at = 0;
    em_real *P = d->P, *column = d->e, unit = em_unit(d->projection);
    for (size_t i = 0; i < EM_PACKED(N); i++)
        P[i] = (em_real)(d->own.U[i] + em_other(d, i)) * unit;
    for (unsigned i = 0; i < N; at += N - i++) P[at] += ridge;
    for (unsigned k = 0; k < N; k++) {
        em_real *row = P;
        at = k;
        for (unsigned i = 0; i < N; at += em_next(N, k, i), i++) column[i] = P[at];
        em_real pivot = column[k];
        if (!(pivot > 0)) return 0;
        column[k] = 0; /* so that row and column k stay as they are */
        for (unsigned i = 0; i < N; i++) {
            em_real share = column[i] / pivot;
            for (unsigned j = i; j < N; j++) *row++ -= share * column[j];
        }
        column[k] = -1;
        at = k;
        for (unsigned i = 0; i < N; at += em_next(N, k, i), i++) P[at] = column[i] / pivot;
    }
    for (size_t i = 0; i < EM_PACKED(N); i++) P[i] = -P[i];
    return 1;
}

static inline em_real em_times_P(const em_device *d, const em_real *from, em_real *to,
                                 unsigned stride) {
    /* to = P from, both (N), and to with so many numbers from each to the next; from' P from */
    unsigned N = d->projection->N;
    const em_real *P = d->P;
    em_real *end = to + (size_t)N * stride, form = 0;
    for (em_real *each = to; each < end; each += stride) *each = 0;
    for (; to < end; to += stride, from++) {
        em_real first = *from, sum = *P++ * first;
        const em_real *other = from;
        for (em_real *each = to + stride; each < end; each += stride) {
            em_real p = *P++;
            sum += p * *++other;
            *each += p * first;
        }
        *to += sum;
        form += *to * first;
    }
    return form;
}

/* A sum times a whole number of 32 bits, in two parts: upper * 2^32 + lower. */
typedef struct {
    int64_t upper, lower;
} em_product;

static inline int32_t em_upper(int64_t value) {
    /* with it, value is upper * 2^32 + its lower 32 bits as a signed number */
    return (int32_t)((uint32_t)((uint64_t)value >> 32) + ((uint32_t)value >> 31));
}

static inline void em_multiply(em_product *to, int64_t sum, int32_t times) {
    to->upper += (int64_t)em_upper(sum) * times;
    to->lower += (int64_t)(int32_t)(uint32_t)sum * times;
}

static inline int32_t em_whole(const em_device *d, unsigned i) {
    int32_t found;
    memcpy(&found, d->g + i, 4);
    return found;
}

static inline unsigned em_fix_column(em_device *d, const em_real *column, unsigned stride) {
    /* leave a column of B in g, as whole numbers of 2^-s; return s. N of them times 2^31 stay below
     * 2^62; if the column is too large for that, all of them are 0 */
    unsigned N = d->projection->N, s = 0;
    em_real largest = 0, most = (em_real)(INT32_MAX / (int32_t)N), scale;
    for (unsigned i = 0; i < N; i++) {
        em_real each = column[(size_t)i * stride], size = each < 0 ? -each : each;
        if (!(size <= largest)) largest = size; /* NaN, too */
    }
    for (scale = 1; s < 30 && largest * scale * 2 < most; s++) scale *= 2;
    for (unsigned i = 0; i < N; i++) {
        int32_t whole = largest < most ? (int32_t)(column[(size_t)i * stride] * scale) : 0;
        memcpy(d->g + i, &whole, 4);
    }
    return s;
}

static inline double em_residuals(em_device *d, unsigned j, unsigned s, int all, em_real ridge) {
    /* e = V - (U + ridge I)B for column j, of all sums or of own ones, where B is in g as whole
     * numbers of 2^-s: by integers, as most digits cancel. Returns the sum of B(V + e). */
    unsigned n = d->projection->n, N = d->projection->N, bits = 2u * d->projection->grid_bits;
    em_real unit = (em_real)1 / (em_real)((uint32_t)1 << s), along = 0;
    em_real quantum = em_unit(d->projection);
    em_product BV = {0, 0};
    for (unsigned i = 0; i < N; i++) {
        em_product UB = {0, 0};
        size_t at = (size_t)i * n + j;
        const int64_t *U = d->own.U + i;
        int64_t V = d->own.V[at];
        unsigned k = 0;
        for (; k < i; U += N - ++k) em_multiply(&UB, *U, em_whole(d, k)); /* down the column */
        for (; k < N; k++) em_multiply(&UB, *U++, em_whole(d, k));         /* along the row */
        if (all && d->others) {
            V += em_other(d, EM_PACKED(N) + at);
            const uint8_t *other = d->others + 8 * i;
            for (k = 0; k < N; other += 8 * em_next(N, i, k), k++)
                em_multiply(&UB, em_checked_quanta(other, bits), em_whole(d, k));
        }
        em_multiply(&UB, V, -((int32_t)1 << s));
        em_multiply(&BV, V, em_whole(d, i));
        em_real upper = (em_real)(UB.upper + em_upper(UB.lower));
        em_real lower = (em_real)(int32_t)(uint32_t)UB.lower, B = (em_real)em_whole(d, i) * unit;
        d->e[i] = -(upper * 4294967296 + lower) * unit * quantum - ridge * B;
        along += B * d->e[i];
    }
    return ((double)BV.upper * 4294967296.0 + (double)BV.lower) * (double)(unit * quantum) +
           (double)along;
}

static inline double em_S(const em_device *d, unsigned j, int all) {
    unsigned n = d->projection->n, N = d->projection->N;
    size_t at = EM_PACKED(N) + (size_t)N * n + n + j;
    return (double)(d->own.S[j] + (all ? em_other(d, at) : 0)) * (double)em_unit(d->projection);
}

static inline double em_column_squares(em_device *d, unsigned j, int all) {
    /* M10: the squared error of input j, of all samples or of own ones */
    unsigned s = em_fix_column(d, d->B + j, d->projection->n);
    return em_S(d, j, all) - em_residuals(d, j, s, all, 0);
}

static inline void em_fit_own(em_device *d) {
    /* M10: how well B fits own samples, and tr(U_own P) */
    unsigned N = d->projection->N;
    double squares = 0.0, freedom = 0.0;
    size_t at = 0;
    for (unsigned j = 0; j < d->projection->n; j++) squares += em_column_squares(d, j, 0);
    for (unsigned i = 0; i < N; i++)
        for (unsigned k = i; k < N; k++, at++)
            freedom += (k > i ? 2.0 : 1.0) * (double)d->own.U[at] * (double)d->P[at];
    d->squares = squares > 0.0 ? (em_real)squares : 0;
    d->freedom = (em_real)freedom * em_unit(d->projection);
}

/* Solve P and B afresh from the sums. em_take does so when it is due; call it in an idle moment
 * to have that behind. */
static inline void em_solve(em_device *d) {
    const em_projection *p = d->projection;
    unsigned n = p->n, N = p->N;
    em_real unit = em_unit(p);
    double J = 0.0;
    d->trace_bits = (uint8_t)em_trace_bits(d);
    d->ridge = d->asked = em_ridge(p, d->trace_bits);
    while (!em_sweep(d, d->ridge)) d->ridge *= 10;
    d->norm = d->trace = 0;
    for (unsigned j = 0; j < n; j++) {
        em_real *B = d->B + j;
        for (unsigned i = 0; i < N; i++) {
            size_t V = (size_t)i * n + j;
            d->g[i] = (em_real)(d->own.V[V] + em_other(d, EM_PACKED(N) + V)) * unit;
        }
        (void)em_times_P(d, d->g, d->e, 1); /* M3 */
        unsigned s = em_fix_column(d, d->e, 1);
        em_real step = (em_real)1 / (em_real)((uint32_t)1 << s);
        J += em_S(d, j, 1) - em_residuals(d, j, s, 1, d->ridge);
        J -= (double)em_times_P(d, d->e, B, n); /* refine it once: B += P (V - (U + ridge I) B) */
        for (unsigned i = 0; i < N; i++, B += n) {
            *B += (em_real)em_whole(d, i) * step;
            d->norm += *B * *B;
        }
    }
    size_t at = 0;
    for (unsigned i = 0; i < N; at += N - i++) d->trace += d->P[at];
    d->J = J > 0.0 ? (em_real)J : 0;
    d->steps = 0;
    if (em_on_own_scale(d)) em_fit_own(d);
}

typedef struct {
    em_real squares, leverage; /* of the sample that was looked at: |x - hB|^2, hPh' */
} em_seen;

static inline em_seen em_look(em_device *d) {
    /* g = Ph and e = x - hB of the sample x with hidden values h */
    const em_projection *p = d->projection;
    unsigned n = p->n, N = p->N;
    em_real step = (em_real)1 / (em_real)((uint32_t)1 << p->grid_bits), *B = d->B;
    em_seen seen = {0, 0};
    for (unsigned i = 0; i < N; i++) d->e[i] = (em_real)d->h[i] * step;
    seen.leverage = em_times_P(d, d->e, d->g, 1);
    for (unsigned j = 0; j < n; j++) d->e[j] = (em_real)d->x[j] * step;
    for (unsigned i = 0; i < N; i++) {
        em_real h = (em_real)d->h[i] * step;
        for (unsigned j = 0; j < n; j++) d->e[j] -= h * *B++;
    }
    for (unsigned j = 0; j < n; j++) seen.squares += d->e[j] * d->e[j];
    if (!(seen.leverage > 0)) seen.leverage = 0; /* P may have lost digits */
    return seen;
}

static inline em_real em_spare(const em_device *d, em_real *count, em_real *freedom) {
    /* M11: 1 - f/c, with the samples that set the scale and what their readout is free to fit */
    const em_projection *p = d->projection;
    int own = em_on_own_scale(d);
    *count = (em_real)d->own.count + (own ? 0 : (em_real)d->others_count * em_unit(p));
    *freedom = own ? d->freedom : (em_real)p->N - d->ridge * d->trace;
    em_real spare = 1 - *freedom / *count, least = (em_real)1e-6;
    if (*freedom < least) *freedom = least;
    return spare > least ? spare : least;
}

static inline float em_score_of(const em_device *d, em_seen seen) {
    /* M11 */
    const em_projection *p = d->projection;
    em_real count, freedom, spare = em_spare(d, &count, &freedom);
    em_real n = (em_real)p->n, share = (em_real)p->loss_share, floor = em_unit(p) / 12;
    em_real loss = em_on_own_scale(d) ? d->squares : d->J - d->ridge * d->norm;
    em_real usual = loss / n / count / (spare * spare);
    if (usual < floor) usual = floor;
    return (float)(share * (seen.squares / n / usual) +
                   (1 - share) * (seen.leverage * spare * count / freedom));
}

static inline void em_follow(em_device *d, em_seen seen) {
    /* P and B with one more sample, whose g and e are at hand: M4, M5 */
    unsigned n = d->projection->n, N = d->projection->N;
    em_real step = 1 / (1 + seen.leverage), left = 1 - step * seen.leverage, g2 = 0, across = 0;
    if (em_on_own_scale(d)) {
        em_real bend = 0, lean = 0, unit = em_unit(d->projection);
        for (unsigned i = 0; i < N; i++) {
            em_real Ug = 0, gap = 0;
            const int64_t *U = d->own.U + i;
            for (unsigned k = 0; k < N; U += em_next(N, i, k), k++) Ug += (em_real)*U * d->g[k];
            for (unsigned j = 0; j < n; j++) {
                size_t at = (size_t)i * n + j;
                gap += (d->g[i] * (em_real)d->own.V[at] - Ug * d->B[at]) * d->e[j];
            }
            bend += Ug * d->g[i] * unit;
            lean += gap * unit;
        }
        d->squares += step * (step * bend * seen.squares - 2 * lean) + left * left * seen.squares;
        d->freedom += left * seen.leverage - step * bend;
    }
    em_real *P = d->P, *B = d->B;
    for (unsigned i = 0; i < N; i++) {
        em_real share = step * d->g[i], dot = 0;
        for (unsigned j = i; j < N; j++) *P++ -= share * d->g[j]; /* M4 */
        for (unsigned j = 0; j < n; j++, B++) {
            dot += *B * d->e[j];
            *B += share * d->e[j]; /* M5 */
        }
        across += d->g[i] * dot;
        g2 += d->g[i] * d->g[i];
    }
    d->J += step * seen.squares;
    d->norm += step * (2 * across + step * g2 * seen.squares);
    d->trace -= step * g2;
    d->steps++;
}

static inline void em_freshen(em_device *d) {
    if (d->steps >= EM_SOLVE_EVERY) em_solve(d);
}

static inline em_seen em_look_fresh(em_device *d) {
    em_seen seen = {0, 0};
    if (d->own.count || d->others) {
        em_freshen(d);
        seen = em_look(d);
    }
    return seen;
}

static inline int em_score_grid(em_device *d, float *score, em_seen *seen) {
    if (em_project(d->projection, d->x, d->h)) return EM_FULL;
    *seen = em_look_fresh(d);
    *score = d->own.count || d->others ? em_score_of(d, *seen) : 0.0f;
    return EM_OK;
}

static inline int em_learn_seen(em_device *d, em_seen seen) {
    /* learn the sample x that was just looked at, and follow P and B */
    int first = !d->own.count && !d->others, scale = em_on_own_scale(d);
    if (em_make_room(d, &d->own)) return EM_FULL;
    if (!first) em_follow(d, seen);
    em_add(d, &d->own);
    unsigned bits = em_trace_bits(d);
    if (first || scale != em_on_own_scale(d) ||
        (bits != d->trace_bits && em_ridge(d->projection, bits) != d->asked))
        d->steps = EM_SOLVE_EVERY;
    d->trace_bits = (uint8_t)bits;
    return EM_OK;
}

static inline int em_learn_x(em_device *d) {
    int error = em_project(d->projection, d->x, d->h);
    return error ? error : em_learn_seen(d, em_look_fresh(d));
}

/* ------------------------------------------------------------------------- what a caller uses */

/* Start with nothing learnt. `memory` holds at least EM_BYTES(n, N) bytes, aligned to 8. */
static inline int em_init(em_device *d, const em_projection *p, void *memory, size_t bytes) {
    size_t n = p->n, N = p->N;
    if (bytes < EM_BYTES(n, N) || ((uintptr_t)memory & 7)) return EM_TOO_SMALL;
    memset(d, 0, sizeof *d);
    memset(memory, 0, EM_BYTES(n, N));
    d->projection = p;
    d->own.U = (int64_t *)memory;
    d->own.V = d->own.U + EM_PACKED(N);
    d->own.C = d->own.V + N * n;
    d->own.S = d->own.C + n;
    d->P = (em_real *)(void *)(d->own.S + n);
    d->B = d->P + EM_PACKED(N);
    d->g = d->B + N * n;
    d->e = d->g + N;
    d->x = (int32_t *)(void *)((int64_t *)(void *)d->P +
                               EM_REALS(EM_PACKED(N) + N * n + N + EM_LONGER(n, N)));
    d->h = d->x + n;
    d->odd = d->h + N;
    d->limit = 4.0f;
    d->commissioning = 16u * p->N;
    d->steps = EM_SOLVE_EVERY;
    return EM_OK;
}

/* Whether enough is known for scores to mean something. */
static inline int em_ready(const em_device *d) {
    int64_t others = d->others_count >> (2 * d->projection->grid_bits);
    return 10 * (d->own.count + others) >= 13 * (int64_t)d->projection->N;
}

/* Score a sample without learning it: 1 is usual, 4 is four times the usual squared error; 0 if
 * nothing is known yet. */
static inline int em_score(em_device *d, const double *readings, float *score) {
    em_seen seen;
    int error = em_to_grid(d->projection, readings, d->x);
    return error ? error : em_score_grid(d, score, &seen);
}

/* Learn a sample, whatever its score. */
static inline int em_learn(em_device *d, const double *readings) {
    int error = em_to_grid(d->projection, readings, d->x);
    return error ? error : em_learn_x(d);
}

/* Score a sample, then learn it. */
static inline int em_learn_and_score(em_device *d, const double *readings, float *score) {
    em_seen seen;
    int error = em_to_grid(d->projection, readings, d->x);
    if (!error) error = em_score_grid(d, score, &seen);
    return error ? error : em_learn_seen(d, seen);
}

static inline float em_raise_level(em_device *d, float score) {
    /* a <- max(z, min(a, m)): z is the third largest of the last five scores, m the largest */
    float sorted[EM_OF];
    d->scores[d->next] = score;
    d->next = (uint8_t)((d->next + 1) % EM_OF);
    memcpy(sorted, d->scores, sizeof sorted);
    for (int i = 1; i < EM_OF; i++)
        for (int k = i; k > 0 && sorted[k] > sorted[k - 1]; k--) {
            float other = sorted[k];
            sorted[k] = sorted[k - 1];
            sorted[k - 1] = other;
        }
    float least = d->level < sorted[0] ? d->level : sorted[0];
    return d->level = sorted[EM_VOTES - 1] > least ? sorted[EM_VOTES - 1] : least;
}

static inline double em_sqrt(double number) {
    /* by Newton's method, from a power of two that is at most twice as large */
    double root = 1.0;
    if (!(number > 0.0)) return 0.0;
    while (root * root < number) root *= 2.0;
    while (root * root >= 4.0 * number) root /= 2.0;
    for (int i = 0; i < 6; i++) root = 0.5 * (root + number / root);
    return root;
}

static inline void em_usual(em_device *d, em_real *usual) {
    /* the usual error of each input: M10, M11 */
    int all = !em_on_own_scale(d);
    em_real count, freedom, spare = em_spare(d, &count, &freedom);
    em_real floor = em_unit(d->projection) / 12;
    for (unsigned j = 0; j < d->projection->n; j++) {
        em_real each = (em_real)em_column_squares(d, j, all) / count / (spare * spare);
        usual[j] = (em_real)em_sqrt((double)(each > floor ? each : floor));
    }
}

static inline void em_assign(em_device *d) {
    /* add the block of odd samples to the pattern if it points the same way, as in a Monitor */
    em_pattern *to = d->pattern;
    unsigned n = d->projection->n, rows = to->n_rows;
    double along = 0.0, mean2 = 0.0, direction2 = 0.0, least = 0.6;
    to->n_rows = 0;
    if (!to->sums.count) em_usual(d, to->scale);
    for (unsigned j = 0; j < n; j++) {
        to->mean[j] /= to->scale[j] * (em_real)rows;
        along += (double)to->mean[j] * (double)to->direction[j];
        mean2 += (double)to->mean[j] * (double)to->mean[j];
        direction2 += (double)to->direction[j] * (double)to->direction[j];
    }
    if (to->sums.count) {
        double size = em_sqrt(mean2 * direction2), cosine = size > 0.0 ? along / size : 0.0;
        if (to->blocks >= 4) { /* three deviations below the mean, in bounds */
            double middle = (double)to->cosine / to->blocks;
            double spread = (double)to->squares / to->blocks - middle * middle;
            least = middle - 3.0 * em_sqrt(spread > 0.0 ? spread : 0.0);
            least = least < 0.5 ? 0.5 : least > 0.9 ? 0.9 : least;
        }
        if (cosine < least) {
            to->left_out += rows;
            rows = 0;
        } else if (to->blocks < UINT16_MAX) {
            to->blocks++;
            to->cosine += (float)cosine;
            to->squares += (float)(cosine * cosine);
        }
    }
    for (unsigned i = 0; i < rows; i++) {
        memcpy(d->x, to->rows + (size_t)i * n, n * sizeof(int32_t));
        (void)em_project(d->projection, d->x, d->h); /* it was scored, so it can be */
        if (em_make_room(d, &to->sums)) to->left_out++;
        else em_add(d, &to->sums);
    }
    for (unsigned j = 0; j < n; j++) {
        if (rows) to->direction[j] += (em_real)rows * to->mean[j];
        to->mean[j] = 0;
    }
}

static inline void em_end_block(em_device *d) {
    /* the episode has ended: samples that are too few for a block are left out */
    if (d->pattern->n_rows >= EM_VOTES) em_assign(d);
    d->pattern->n_rows = 0;
    memset(d->pattern->mean, 0, d->projection->n * sizeof(em_real));
}

static inline void em_keep_row(em_device *d) {
    /* keep the sample x, whose residual e is at hand, for the pattern */
    em_pattern *to = d->pattern;
    unsigned n = d->projection->n;
    memcpy(to->rows + (size_t)to->n_rows++ * n, d->x, n * sizeof(int32_t));
    for (unsigned j = 0; j < n; j++) to->mean[j] += d->e[j];
}

static inline void em_keep_odd(em_device *d, int odd) {
    /* in an episode: the odd samples before it, then the sample x if it is odd */
    unsigned n = d->projection->n;
    if (odd) em_keep_row(d);
    for (unsigned i = 0; i < d->n_odd; i++) {
        memcpy(d->x, d->odd + (size_t)i * n, n * sizeof(int32_t));
        (void)em_project(d->projection, d->x, d->h);
        (void)em_look(d);
        em_keep_row(d);
    }
    if (d->pattern->n_rows >= EM_BLOCK) em_assign(d);
}

static inline int em_settle_odd(em_device *d, int odd, float score) {
    /* learn the oldest odd sample once no episode has followed it, and let x wait if it is odd.
     * There is room, unless the limit was just raised: then x is not learnt. */
    size_t n = d->projection->n;
    int due = d->n_odd && (d->ages[0] & ~EM_TOO_ODD) >= EM_OF;
    int learn = due && !(d->ages[0] & EM_TOO_ODD);
    if (due) d->ages[0] = d->ages[--d->n_odd];
    int wait = odd && d->n_odd < EM_WAITING;
    for (size_t j = 0; j < n; j++) {
        int32_t x = d->x[j];
        if (due) {
            d->x[j] = d->odd[j];
            d->odd[j] = d->odd[n + j];
        }
        if (wait) d->odd[d->n_odd * n + j] = x;
    }
    if (wait) d->ages[d->n_odd++] = score > EM_MAX_ODD * d->limit ? EM_TOO_ODD : 0;
    return learn ? em_learn_x(d) : EM_OK;
}

/* Take one sample that is on the grid, in steps of 2^-g of the range: score it, tell whether it is
 * an alarm, and learn it unless an episode is open. EM_FULL: it is scored, but not learnt, and an
 * alarm begins and ends as ever; only if its hidden values are beyond what sums can hold, there is
 * no result. */
static inline int em_take_grid(em_device *d, const int32_t *x, em_result *result) {
    unsigned n = d->projection->n;
    const int32_t far = (int32_t)EM_FAR << d->projection->grid_bits;
    em_result found = {0};
    for (unsigned i = 0; i < n; i++) d->x[i] = x[i] > far ? far : x[i] < -far ? -far : x[i];
    em_seen seen;
    int error = em_score_grid(d, &found.score, &seen);
    if (error) return error;
    found.ready = (uint8_t)(em_ready(d) && (uint64_t)d->own.count >= d->commissioning);
    int odd = 0, ended = 0;
    if (found.ready) {
        found.level = em_raise_level(d, found.score);
        found.alarm = found.level > d->limit;
        odd = found.score > d->limit;
        d->episodes += found.alarm && !d->alarm;
        ended = d->alarm && !found.alarm;
        d->alarm = found.alarm;
    }
    for (int i = 0; i < d->n_odd; i++) d->ages[i]++;
    if (found.alarm) {
        if (d->pattern) d->pattern->keep(d, odd);
        d->n_odd = 0; /* they were the beginning of it */
    } else {
        if (!odd) {
            error = em_learn_seen(d, seen);
            found.learnt = !error;
        }
        if (!error) error = em_settle_odd(d, odd, found.score);
        if (ended && d->pattern) d->pattern->end(d);
    }
    *result = found;
    return error;
}

/* The same for readings in their own units. */
static inline int em_take(em_device *d, const double *readings, em_result *result) {
    int error = em_to_grid(d->projection, readings, d->x);
    return error ? error : em_take_grid(d, d->x, result);
}

/* The same for readings that are whole numbers, such as those of a converter: it gives the same
 * as em_take does for them, without doubles. */
static inline int em_take_integers(em_device *d, const int32_t *readings, em_result *result) {
    em_integers_to_grid(d->projection, readings, d->x);
    return em_take_grid(d, d->x, result);
}

/* What a person says of the pattern: it is not normal. Then another one can be kept. */
static inline void em_dismiss(em_device *d) {
    em_pattern *pattern = d->pattern;
    if (!pattern) return;
    memset(pattern->sums.U, 0, EM_PATTERN_BYTES(d->projection->n, d->projection->N));
    pattern->sums.count = pattern->sums.largest = 0;
    pattern->cosine = pattern->squares = 0;
    pattern->left_out = pattern->blocks = pattern->n_rows = 0;
}

/* What a person says of the pattern: it is normal. Its sums are added to those of the device. */
static inline int em_approve(em_device *d) {
    em_pattern *pattern = d->pattern;
    size_t n = d->projection->n, N = d->projection->N;
    if (!pattern) return EM_OK;
    em_count_largest(d->projection, &d->own);
    if (pattern->sums.largest > EM_EXACT - 1 - d->own.largest) return EM_FULL;
    for (size_t i = 0; i < EM_SUMS(n, N); i++)
        d->own.U[i] += pattern->sums.U[i]; /* U, V, C, S in one: M7 */
    d->own.count += pattern->sums.count;
    d->own.largest += pattern->sums.largest;
    d->steps = EM_SOLVE_EVERY;
    em_dismiss(d);
    return EM_OK;
}

/* -------------------------------------------------------------------------------- exchanging */

/* Takes bytes that are sent or saved; returns 0, or anything else to stop. */
typedef int (*em_write)(void *context, const void *bytes, size_t size);

typedef struct em_stream {
    em_write write;
    void *context;
    size_t size;  /* bytes so far */
    uint32_t crc; /* of these */
    int failed;
} em_stream;

static inline void em_put(em_stream *to, const void *bytes, size_t size) {
    static const uint32_t table[16] = {
        0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4,
        0x4DB26158, 0x5005713C, 0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
        0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C}; /* of CRC-32, by four bits */
    const uint8_t *each = (const uint8_t *)bytes;
    for (size_t i = 0; i < size; i++) {
        to->crc = table[(to->crc ^ each[i]) & 15] ^ to->crc >> 4;
        to->crc = table[(to->crc ^ each[i] >> 4) & 15] ^ to->crc >> 4;
    }
    to->size += size;
    if (to->write && !to->failed) to->failed = to->write(to->context, bytes, size) != 0;
}

static inline void em_put_text(em_stream *to, const char *text) { em_put(to, text, strlen(text)); }

static inline void em_put64(em_stream *to, uint64_t word) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(word >> (8 * i));
    em_put(to, bytes, 8);
}

static inline void em_put_words(em_stream *to, const int64_t *words, size_t count) {
    for (size_t i = 0; i < count; i++) em_put64(to, (uint64_t)words[i]);
}

static inline void em_put_number(em_stream *to, uint32_t number) {
    char digits[11], *at = digits + 10;
    *at = 0;
    do *--at = (char)('0' + number % 10);
    while (number /= 10);
    em_put_text(to, at);
}

static inline uint64_t em_float64(int64_t quanta, unsigned bits) {
    /* the bits of quanta * 2^-bits as a float64 */
    if (!quanta) return 0;
    uint64_t size = quanta < 0 ? (uint64_t)0 - (uint64_t)quanta : (uint64_t)quanta;
    int exponent = 1075 - (int)bits;
    while (!(size >> 52)) {
        size <<= 1;
        exponent--;
    }
    return (uint64_t)(quanta < 0) << 63 | (uint64_t)exponent << 52 |
           (size & (((uint64_t)1 << 52) - 1));
}

static inline void em_put_count(em_stream *to, int64_t count) {
    /* as Python's float.hex: 0x1.9000000000000p+5 */
    char text[32], *at = text;
    uint64_t word = em_float64(count, 0), digits = word & (((uint64_t)1 << 52) - 1);
    if (!count) {
        em_put_text(to, "0x0.0p+0");
        return;
    }
    memcpy(at, "0x1.", 4);
    at += 4;
    for (int i = 48; i >= 0; i -= 4) *at++ = "0123456789abcdef"[digits >> i & 15];
    memcpy(at, "p+", 3);
    em_put_text(to, text);
    em_put_number(to, (uint32_t)(word >> 52) - 1023);
}

static inline void em_put_header(em_stream *to, const em_device *d, int64_t count, const char *kind,
                                 const char *device, const char *pattern) {
    const em_projection *p = d->projection;
    em_put_text(to, "{\"__metadata__\":{\"edgemerge\":\"1\",\"kind\":\"");
    em_put_text(to, kind);
    em_put_text(to, "\",\"form\":\"exact\",\"fingerprint\":\"");
    em_put_text(to, p->fingerprint);
    em_put_text(to, "\",\"projection\":\"");
    em_put_text(to, p->settings);
    if (device) {
        em_put_text(to, "\",\"device\":\"");
        em_put_text(to, device);
        em_put_text(to, "\",\"pattern\":\"");
        em_put_text(to, pattern);
        em_put_text(to, "\",\"incarnation\":\"");
        em_put_number(to, d->incarnation);
        em_put_text(to, "\",\"revision\":\"");
        em_put_number(to, d->revision);
    }
    em_put_text(to, "\",\"count\":\"");
    em_put_count(to, count);
    em_put_text(to, p->tensors);
    while (to->size & 7) em_put_text(to, " ");
}

static inline int em_share_sums(em_device *d, const em_sums *sums, const char *kind,
                                const char *device, const char *pattern, em_write write,
                                void *context) {
    const em_projection *p = d->projection;
    unsigned bits = 2u * p->grid_bits;
    em_stream length = {0}, to = {0};
    d->revision++;
    em_put_header(&length, d, sums->count, kind, device, pattern);
    to.write = write;
    to.context = context;
    em_put64(&to, length.size);
    em_stream header = to;
    header.size = 0;
    em_put_header(&header, d, sums->count, kind, device, pattern);
    to.failed = header.failed;
    for (size_t i = 0; i < EM_PACKED(p->N); i++) em_put64(&to, em_float64(sums->U[i], bits));
    for (size_t i = 0; i < (size_t)p->N * p->n; i++) em_put64(&to, em_float64(sums->V[i], bits));
    for (unsigned j = 0; j < p->n; j++) em_put64(&to, em_float64(sums->C[j], p->grid_bits));
    for (unsigned j = 0; j < p->n; j++) em_put64(&to, em_float64(sums->S[j], bits));
    return to.failed ? EM_WRITE_FAILED : EM_OK;
}

/* Send what this device saw itself as a contribution, with the next revision, which is used up even
 * if `write` fails, as the bytes may have arrived: the same bytes that Python sends. Names are plain
 * ASCII without quotes or backslashes. */
static inline int em_share(em_device *d, const char *device, const char *pattern, em_write write,
                           void *context) {
    return em_share_sums(d, &d->own, "contribution", device, pattern, write, context);
}

/* Send the pattern that is kept as a fault with a name, by which other devices know it. */
static inline int em_share_fault(em_device *d, const char *device, const char *name,
                                 em_write write, void *context) {
    if (!d->pattern) return EM_BAD_BYTES;
    return em_share_sums(d, &d->pattern->sums, "fault", device, name, write, context);
}

typedef struct {
    const uint8_t *bytes;
    size_t size;
    int same;
} em_comparison;

static inline int em_compare(void *context, const void *bytes, size_t size) {
    em_comparison *with = (em_comparison *)context;
    with->same = with->same && size <= with->size && !memcmp(with->bytes, bytes, size);
    if (with->same) {
        with->bytes += size;
        with->size -= size;
    }
    return !with->same;
}

static inline int em_parse_count(const uint8_t *text, size_t size, unsigned bits, int64_t *quanta) {
    /* what em_put_count writes, in counts of 2^-bits */
    uint64_t digits = 0, exponent = 0;
    size_t at = 4, end = 4;
    if (size >= 9 && !memcmp(text, "0x0.0p+0\"", 9)) {
        *quanta = 0;
        return 8;
    }
    if (size < 24 || memcmp(text, "0x1.", 4)) return 0;
    for (; end < 17; end++) {
        uint8_t c = text[end];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return 0;
        digits = digits << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (text[end] != 'p' || text[end + 1] != '+') return 0; /* less than one sample is none */
    for (at = end += 2; end < size && end < at + 2 && text[end] >= '0' && text[end] <= '9'; end++)
        exponent = 10 * exponent + (uint64_t)(text[end] - '0');
    if (end == at || end >= size || text[end] != '"') return 0;
    return em_quanta((exponent + 1023) << 52 | digits, bits, quanta) ? 0 : (int)end;
}

/* Use what others have seen: the bytes of a Stats of the same projection, as `edgemerge bridge`
 * or `encode(ledger.total(...).total)` give them. They are read in place, also from flash, and must
 * stay there until something else is adopted. NULL takes it back. */
static inline int em_adopt(em_device *d, const uint8_t *bytes, size_t size) {
    const em_projection *p = d->projection;
    unsigned bits = 2u * p->grid_bits;
    size_t sums = EM_SUMS(p->n, p->N);
    if (!bytes) {
        d->others = NULL;
        d->others_count = 0;
        d->steps = EM_SOLVE_EVERY;
        return EM_OK;
    }
    if (size < 8) return EM_BAD_BYTES;
    uint64_t length = em_read64(bytes);
    if (length > size || (length & 7) || size != 8 + length + 8 * sums) return EM_BAD_BYTES;
    /* the header is compared with the one that this device would write, up to the count */
    static const char last[] = "\"count\":\"";
    const uint8_t *header = bytes + 8;
    size_t at = 0, width = sizeof last - 1;
    while (at + width < length && memcmp(header + at, last, width)) at++;
    if (at + width >= length) return EM_BAD_BYTES;
    int64_t count = 0;
    int digits = em_parse_count(header + at + width, (size_t)length - at - width, bits, &count);
    if (!digits) return EM_BAD_BYTES;
    em_comparison same = {header, (size_t)length, 1};
    em_stream to = {em_compare, &same, 0, 0, 0};
    if (((count >> bits) << bits) != count) return EM_BAD_BYTES; /* fractions: for larger devices */
    em_put_header(&to, d, count >> bits, "stats", NULL, NULL);
    if (!same.same) return EM_OTHER_FLEET;
    if (same.size) return EM_BAD_BYTES;
    const uint8_t *arrays = header + length;
    int64_t largest = 0, found = 0;
    for (size_t i = 0; i < sums; i++) {
        size_t C = sums - 2 * (size_t)p->n;
        if (em_quanta(em_read64(arrays + 8 * i), i >= C && i < C + p->n ? p->grid_bits : bits, &found))
            return EM_BAD_BYTES;
        if ((found < 0 ? -found : found) > largest) largest = found < 0 ? -found : found;
    }
    size_t place = 0;
    for (unsigned i = 0; i < p->N; place += p->N - i++)
        if (arrays[8 * place + 7] & 128) return EM_BAD_BYTES; /* less than 0 on the diagonal */
    if (count > largest) largest = count;
    em_count_largest(p, &d->own);
    if (largest > EM_EXACT - 1 - d->own.largest) return EM_FULL;
    d->others = count ? arrays : NULL;
    d->others_count = count;
    d->steps = EM_SOLVE_EVERY;
    return EM_OK;
}

/* ------------------------------------------------------------------------------------ saving */

/* Storage with two slots of at least EM_SAVED_BYTES(n, N) each, or EM_SAVED_PATTERN_BYTES(n, N) if a
 * pattern is kept: writes go to one, the other keeps the state before, so power can fail at any
 * moment. Functions return 0, or anything else. */
typedef struct {
    int (*begin)(void *context, int slot); /* erase a slot */
    int (*write)(void *context, const void *bytes, size_t size); /* append to it */
    int (*read)(void *context, int slot, size_t at, void *bytes, size_t size);
    void *context;
} em_storage;

#define EM_SAVED_WORDS(n, N) (14 + EM_SUMS(n, N))
#define EM_PATTERN_SAVED_WORDS(n, N) (3 + EM_SUMS(n, N) + (size_t)(n))
#define EM_SAVED_BYTES(n, N) (16 + 8 * EM_SAVED_WORDS(n, N))
#define EM_SAVED_PATTERN_BYTES(n, N) (EM_SAVED_BYTES(n, N) + 8 * EM_PATTERN_SAVED_WORDS(n, N))
#define EM_MAGIC UINT64_C(0x31656772656d6465)              /* "edmerge1" */
#define EM_MAGIC_WITH_PATTERN UINT64_C(0x32656772656d6465) /* "edmerge2" */

static inline uint64_t em_two_floats(float upper, float lower) {
    uint32_t words[2];
    memcpy(words, &lower, 4);
    memcpy(words + 1, &upper, 4);
    return (uint64_t)words[1] << 32 | words[0];
}

static inline float em_float_of(uint32_t word) {
    float found;
    memcpy(&found, &word, 4);
    return found;
}

/* Save sums, the pattern that is kept, revision and limit; not saved are odd samples that wait for
 * their block or episode, fewer than EM_BLOCK. Both slots are of one life: erase them if the
 * device starts with em_init alone, or em_resume may find an older life later. */
static inline int em_save(em_device *d, const em_storage *storage) {
    const em_projection *p = d->projection;
    em_stream to = {storage->write, storage->context, 0, 0, 0};
    if (storage->begin(storage->context, (int)((d->saved + 1) & 1))) return EM_WRITE_FAILED;
    em_put64(&to, d->pattern ? EM_MAGIC_WITH_PATTERN : EM_MAGIC);
    em_put64(&to, (uint64_t)d->episodes << 32 | (d->saved + 1));
    em_put(&to, p->fingerprint, 64);
    em_put64(&to, (uint64_t)d->own.count);
    em_put64(&to, (uint64_t)d->incarnation << 32 | d->revision);
    em_put64(&to, (uint64_t)d->commissioning << 32 | (uint32_t)em_two_floats(0, d->limit));
    em_put_words(&to, d->own.U, EM_SUMS(p->n, p->N)); /* U, V, C, S in one */
    if (d->pattern) d->pattern->save(d, &to);
    em_put64(&to, (uint64_t)to.crc << 32);
    if (to.failed) return EM_WRITE_FAILED;
    d->saved++;
    return EM_OK;
}

static inline int em_read_slot(const em_projection *p, const em_storage *storage, int slot,
                               uint64_t *number, size_t *words) {
    const char *fingerprint = p->fingerprint;
    em_stream sum = {0};
    uint8_t bytes[8];
    *words = EM_SAVED_WORDS(p->n, p->N);
    for (size_t i = 0; i < *words; i++) {
        if (storage->read(storage->context, slot, 8 * i, bytes, 8)) return EM_CORRUPT;
        uint64_t word = em_read64(bytes);
        if (i == 0 && word == EM_MAGIC_WITH_PATTERN) *words += EM_PATTERN_SAVED_WORDS(p->n, p->N);
        else if (i == 0 && word != EM_MAGIC) return EM_CORRUPT;
        if (i == 1) *number = word;
        if (i >= 2 && i < 10) {
            if (memcmp(bytes, fingerprint, 8)) return EM_OTHER_FLEET;
            fingerprint += 8;
        }
        if (i == *words - 1) return (uint32_t)(word >> 32) == sum.crc ? EM_OK : EM_CORRUPT;
        em_put(&sum, bytes, 8);
    }
    return EM_CORRUPT;
}

/* Continue from the newest state that is whole. Call it right after em_init, and after
 * em_keep_pattern, if a pattern is kept: without it, a pattern that was saved is left out. */
static inline int em_resume(em_device *d, const em_storage *storage) {
    const em_projection *p = d->projection;
    uint64_t numbers[2] = {0, 0};
    size_t words[2], sums = EM_SUMS(p->n, p->N);
    int found[2];
    for (int slot = 0; slot < 2; slot++)
        found[slot] = em_read_slot(p, storage, slot, &numbers[slot], &words[slot]);
    if (found[0] && found[1]) return found[0] == EM_OTHER_FLEET ? found[0] : found[1];
    int slot = found[0] ? 1 : found[1] ? 0 : (uint32_t)numbers[1] > (uint32_t)numbers[0];
    uint8_t bytes[8];
    for (size_t i = 10; i < words[slot] - 1; i++) {
        if (storage->read(storage->context, slot, 8 * i, bytes, 8)) { /* it could a moment ago */
            em_pattern *pattern = d->pattern;
            (void)em_init(d, p, d->own.U, EM_BYTES(p->n, p->N));
            d->pattern = pattern;
            em_dismiss(d);
            return EM_CORRUPT;
        }
        uint64_t word = em_read64(bytes);
        uint32_t low = (uint32_t)word;
        if (i == 10) d->own.count = (int64_t)word;
        else if (i == 11) {
            d->revision = low;
            d->incarnation = (uint32_t)(word >> 32);
        } else if (i == 12) {
            d->limit = em_float_of(low);
            d->commissioning = (uint32_t)(word >> 32);
        } else if (i < 13 + sums) d->own.U[i - 13] = (int64_t)word;
        else if (d->pattern) d->pattern->resume(d, i - 13 - sums, word);
    }
    d->saved = (uint32_t)numbers[slot];
    d->episodes = (uint32_t)(numbers[slot] >> 32);
    em_count_largest(p, &d->own);
    d->steps = EM_SOLVE_EVERY;
    return EM_OK;
}

static inline void em_save_pattern(const em_device *d, em_stream *to) {
    const em_pattern *pattern = d->pattern;
    unsigned n = d->projection->n;
    em_put64(to, (uint64_t)pattern->sums.count);
    em_put64(to, em_two_floats(pattern->cosine, pattern->squares));
    em_put64(to, (uint64_t)pattern->blocks << 32 | pattern->left_out);
    em_put_words(to, pattern->sums.U, EM_SUMS(n, d->projection->N));
    for (unsigned j = 0; j < n; j++)
        em_put64(to, em_two_floats((float)pattern->direction[j], (float)pattern->scale[j]));
}

static inline void em_resume_pattern(em_device *d, size_t place, uint64_t word) {
    em_pattern *pattern = d->pattern;
    size_t sums = EM_SUMS(d->projection->n, d->projection->N);
    uint32_t upper = (uint32_t)(word >> 32), lower = (uint32_t)word;
    if (place == 0) pattern->sums.count = (int64_t)word;
    else if (place == 1) {
        pattern->cosine = em_float_of(upper);
        pattern->squares = em_float_of(lower);
    } else if (place == 2) {
        pattern->blocks = (uint16_t)upper;
        pattern->left_out = lower;
    } else if (place < 3 + sums) {
        pattern->sums.U[place - 3] = (int64_t)word;
        if (place == 2 + sums) em_count_largest(d->projection, &pattern->sums);
    } else {
        pattern->direction[place - 3 - sums] = (em_real)em_float_of(upper);
        pattern->scale[place - 3 - sums] = (em_real)em_float_of(lower);
    }
}

/* Keep the odd samples of episodes, as the sums of one pattern that waits for a review. `memory`
 * holds at least EM_PATTERN_BYTES(n, N) bytes, aligned to 8. The samples of the first episode form
 * the pattern; later ones join it if they point the same way, and are left out if they do not. */
static inline int em_keep_pattern(em_device *d, em_pattern *pattern, void *memory, size_t bytes) {
    size_t n = d->projection->n, N = d->projection->N;
    if (bytes < EM_PATTERN_BYTES(n, N) || ((uintptr_t)memory & 7)) return EM_TOO_SMALL;
    pattern->sums.U = (int64_t *)memory;
    pattern->sums.V = pattern->sums.U + EM_PACKED(N);
    pattern->sums.C = pattern->sums.V + N * n;
    pattern->sums.S = pattern->sums.C + n;
    pattern->mean = (em_real *)(void *)(pattern->sums.S + n);
    pattern->direction = pattern->mean + n;
    pattern->scale = pattern->direction + n;
    pattern->rows = (int32_t *)(void *)((int64_t *)(void *)pattern->mean + EM_REALS(3 * n));
    pattern->keep = em_keep_odd;
    pattern->end = em_end_block;
    pattern->save = em_save_pattern;
    pattern->resume = em_resume_pattern;
    d->pattern = pattern;
    em_dismiss(d);
    return EM_OK;
}

/* ------------------------------------------------------------------------------- fingerprint */

typedef struct {
    uint32_t state[8];
    uint8_t block[64];
    uint64_t size;
} em_sha256;

static inline uint32_t em_rotate(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static inline void em_sha256_block(em_sha256 *hash) {
    static const uint32_t K[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)hash->block[4 * i] << 24 | (uint32_t)hash->block[4 * i + 1] << 16 |
               (uint32_t)hash->block[4 * i + 2] << 8 | hash->block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] +
               (em_rotate(w[i - 15], 7) ^ em_rotate(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (em_rotate(w[i - 2], 17) ^ em_rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, hash->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (em_rotate(s[4], 6) ^ em_rotate(s[4], 11) ^ em_rotate(s[4], 25)) +
                       ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[i] + w[i];
        uint32_t two = (em_rotate(s[0], 2) ^ em_rotate(s[0], 13) ^ em_rotate(s[0], 22)) +
                       ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        for (int k = 7; k > 0; k--) s[k] = s[k - 1];
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) hash->state[i] += s[i];
}

static inline int em_sha256_add(void *context, const void *bytes, size_t size) {
    em_sha256 *hash = (em_sha256 *)context;
    for (size_t i = 0; i < size; i++) {
        hash->block[hash->size++ & 63] = ((const uint8_t *)bytes)[i];
        if (!(hash->size & 63)) em_sha256_block(hash);
    }
    return 0;
}

static inline void em_sha256_begin(em_sha256 *hash) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, start, sizeof start);
    hash->size = 0;
}

static inline void em_sha256_end(em_sha256 *hash, uint8_t *digest) {
    uint64_t bits = 8 * hash->size;
    (void)em_sha256_add(hash, "\x80", 1);
    while ((hash->size & 63) != 56) (void)em_sha256_add(hash, "", 1);
    for (int i = 56; i >= 0; i -= 8) {
        uint8_t byte = (uint8_t)(bits >> i);
        (void)em_sha256_add(hash, &byte, 1);
    }
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

static inline uint64_t em_bits_of(double value) {
    uint64_t word;
    memcpy(&word, &value, 8);
    return word;
}

static inline uint64_t em_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static inline int32_t em_draw_one(const em_projection *p, unsigned i, unsigned j, int *negative) {
    /* weight j of input i, or of the bias if i is n: SplitMix64, then twelve uniform numbers that
     * add up to a nearly Gaussian one for cosine, else one uniform number */
    const uint64_t gamma = UINT64_C(0x9E3779B97F4A7C15);
    const em_source *s = p->source;
    uint64_t key = i == p->n ? UINT64_MAX : s->keys ? s->keys[i] : i;
    uint64_t state = em_mix(em_mix(s->seed + gamma) + key);
    int64_t drawn = 0;
    double unit = 1.0 / 65536.0;
    if (p->activation == EM_COSINE && i < p->n) {
        for (unsigned k = 1; k <= 3; k++) {
            uint64_t word = em_mix(state + (3 * (uint64_t)j + k) * gamma);
            for (unsigned bit = 0; bit < 64; bit += 16) drawn += (int64_t)(word >> bit & 0xFFFF);
        }
        drawn -= 6 * 65535;
    } else {
        drawn = (int64_t)(em_mix(state + (j + (uint64_t)1) * gamma) >> 11) - ((int64_t)1 << 52);
        unit = 1.0 / (double)((int64_t)1 << 52);
    }
    *negative = drawn < 0;
    volatile double scaled = (double)drawn * unit * (i == p->n ? s->bias_width : s->width);
    return em_round(scaled); /* not fused with what rounding subtracts */
}

/* Draw the weights from the settings of the projection, as Python does, into RAM. It does nothing
 * if they are a table in flash. */
static inline void em_draw(const em_projection *p) {
    int negative;
    for (unsigned i = 0; p->source && i <= p->n; i++)
        for (unsigned j = 0; j < p->N; j++)
            (i < p->n ? p->source->A + (size_t)i * p->N : p->source->b)[j] =
                em_draw_one(p, i, j, &negative);
}

/* Recompute the fingerprint from the constants; EM_BAD_TABLE if they are not what it names. */
static inline int em_check_table(const em_projection *p) {
    em_sha256 hash;
    uint8_t digest[32];
    em_sha256_begin(&hash);
    em_stream to = {em_sha256_add, &hash, 0, 0, 0};
    size_t weights = (size_t)p->n * p->N, zero = 0;
    em_put(&to, p->words, p->words_length);
    for (size_t i = 0; i < weights + p->N; i++) {
        uint64_t word = em_float64(i < weights ? p->A[i] : p->b[i - weights], p->weight_bits);
        int negative = 0;
        if (!word && p->source)
            (void)em_draw_one(p, (unsigned)(i / p->N), (unsigned)(i % p->N), &negative);
        if (zero < p->n_negative_zeros && p->negative_zeros[zero] == i) {
            negative = 1;
            zero++;
        }
        if (negative) word = (uint64_t)1 << 63;
        em_put64(&to, word);
    }
    for (unsigned i = 0; i < p->n; i++) em_put64(&to, em_bits_of(p->low[i]));
    for (unsigned i = 0; i < p->n; i++) em_put64(&to, em_bits_of(p->high[i]));
    em_sha256_end(&hash, digest);
    for (int i = 0; i < 64; i++)
        if (p->fingerprint[i] != "0123456789abcdef"[digest[i / 2] >> (i % 2 ? 0 : 4) & 15])
            return EM_BAD_TABLE;
    return EM_OK;
}

#endif
