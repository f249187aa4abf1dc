/* The kernel: scores one sample and learns the one before it, in one call and one pass over V.
 *
 * A (n, N), b (N,), U, P (N, N), V and others (N, n), C, S (n,); x (n,), h (N,). Names and equations
 * are those of core/detector.py, core/readout.py and docs/maths.md; Python decides, this file counts.
 *
 * With g = Ph, and q = Pg (or PUg where own samples set the scale), learning needs (qV)e, and V += h'x
 * needs no e. So gV of the new sample, qV of the one before and the update share one read and one write
 * of V; P gives q, its own update and g in the same way. A learnt sample is therefore kept until the
 * next one comes, or until Python asks for the sums (`settle`).
 *
 * Sums are exact without forgetting; with it they round, and so does the map from readings to the
 * grid. Where bits matter nothing is fused, hence -ffp-contract=off, and FMA() where only scores
 * depend on it. `Run` declines (returns None) whatever Python must decide: other
 * kinds of samples, readings that are not finite, full sums, P due to be solved, another ridge.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#if FLT_EVAL_METHOD != 0
#error "this compiler computes with more digits than double has: NumPy does the work instead"
#endif

#if defined(__GNUC__) && defined(__x86_64__)
#define HAVE_AVX 1
#endif
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

#define FMA(a, b, c) (fused ? fma((a), (b), (c)) : (a) * (b) + (c))

/* ---- loops, compiled for every CPU, and for AVX2 and AVX-512 with fused operations ---- */

/* x*gain + shift, rounded to whole steps within `far` of 0; returns how many x are not finite. */
INLINE double to_grid(size_t n, const double *restrict x, const double *restrict gain,
                      const double *restrict shift, double far, double step, double *restrict out)
{
    const double big = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to whole numbers */
    double bad = 0.0;
#pragma omp simd reduction(+ : bad)
    for (size_t j = 0; j < n; j++) {
        double steps = x[j] * gain[j];
        steps = steps + shift[j];
        double whole = copysign((steps + big) - big, steps); /* keeps -0, as rint does */
        bad += fabs(x[j]) <= DBL_MAX ? 0.0 : 1.0;
        out[j] = (whole > far ? far : whole < -far ? -far : whole) * step;
    }
    return bad;
}

INLINE double dot(int fused, size_t n, const double *restrict a, const double *restrict b)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < n; j++)
        sum = FMA(a[j], b[j], sum);
    return sum;
}

/* How `pass` adds: not at all, rounding the product first as NumPy does, or by a fused operation,
 * which has the same bits where the sum is exact. */
enum { NOT_ADDED, ROUNDED, FUSED };

/* One read of M, four rows at a time; rows are `wide` apart. Three things, each if asked for: z += cM,
 * then M += a'x, then y += gM. */
INLINE void pass(int fused, int before, int add, int after, size_t rows, size_t n, size_t wide,
                 const double *restrict c, double *restrict z, const double *restrict a,
                 const double *restrict x, const double *restrict g, double *restrict y,
                 double *restrict M)
{
    const int fma_adds = fused && add == FUSED;
    size_t i = 0;
    for (; i + 4 <= rows; i += 4) {
        double *restrict m0 = M + i * wide, *restrict m1 = m0 + wide;
        double *restrict m2 = m1 + wide, *restrict m3 = m2 + wide;
        const double c0 = before ? c[i] : 0, c1 = before ? c[i + 1] : 0;
        const double c2 = before ? c[i + 2] : 0, c3 = before ? c[i + 3] : 0;
        const double a0 = add ? a[i] : 0, a1 = add ? a[i + 1] : 0;
        const double a2 = add ? a[i + 2] : 0, a3 = add ? a[i + 3] : 0;
        const double g0 = after ? g[i] : 0, g1 = after ? g[i + 1] : 0;
        const double g2 = after ? g[i + 2] : 0, g3 = after ? g[i + 3] : 0;
#pragma omp simd
        for (size_t j = 0; j < n; j++) {
            double s0 = m0[j], s1 = m1[j], s2 = m2[j], s3 = m3[j];
            if (before)
                z[j] = FMA(c3, s3, FMA(c2, s2, FMA(c1, s1, FMA(c0, s0, z[j]))));
            if (add) {
                const double t = x[j];
                m0[j] = s0 = fma_adds ? fma(a0, t, s0) : s0 + a0 * t;
                m1[j] = s1 = fma_adds ? fma(a1, t, s1) : s1 + a1 * t;
                m2[j] = s2 = fma_adds ? fma(a2, t, s2) : s2 + a2 * t;
                m3[j] = s3 = fma_adds ? fma(a3, t, s3) : s3 + a3 * t;
            }
            if (after)
                y[j] = FMA(g3, s3, FMA(g2, s2, FMA(g1, s1, FMA(g0, s0, y[j]))));
        }
    }
    for (; i < rows; i++) {
        double *restrict m0 = M + i * wide;
        const double c0 = before ? c[i] : 0, a0 = add ? a[i] : 0, g0 = after ? g[i] : 0;
#pragma omp simd
        for (size_t j = 0; j < n; j++) {
            double s0 = m0[j];
            if (before)
                z[j] = FMA(c0, s0, z[j]);
            if (add)
                m0[j] = s0 = fma_adds ? fma(a0, x[j], s0) : s0 + a0 * x[j];
            if (after)
                y[j] = FMA(g0, s0, y[j]);
        }
    }
}

/* y += gM, four rows at a time, for M of doubles, or of floats, which are half as much to read. */
#define COMPILE_ADD_ROWS(name, type)                                                                   \
    INLINE void name(int fused, size_t rows, size_t n, size_t wide, const double *restrict g,          \
                     const type *restrict M, double *restrict y)                                       \
    {                                                                                                  \
        size_t i = 0;                                                                                  \
        for (; i + 4 <= rows; i += 4) {                                                                \
            const type *restrict m0 = M + i * wide, *restrict m1 = m0 + wide;                          \
            const type *restrict m2 = m1 + wide, *restrict m3 = m2 + wide;                             \
            const double g0 = g[i], g1 = g[i + 1], g2 = g[i + 2], g3 = g[i + 3];                       \
            _Pragma("omp simd") for (size_t j = 0; j < n; j++) y[j] =                                  \
                FMA(g3, m3[j], FMA(g2, m2[j], FMA(g1, m1[j], FMA(g0, m0[j], y[j]))));                  \
        }                                                                                              \
        for (; i < rows; i++)                                                                          \
            _Pragma("omp simd") for (size_t j = 0; j < n; j++) y[j] =                                  \
                FMA(g[i], M[i * wide + j], y[j]);                                                      \
    }
COMPILE_ADD_ROWS(add_rows, double)
COMPILE_ADD_ROWS(add_float_rows, float)

/* U += part'part, for the triangle that Python uses and what shares its cache lines. */
INLINE void update_triangle(int fused, size_t N, const double *restrict part, double *restrict U)
{
    for (size_t i = 0; i < N; i++) {
        double *restrict row = U + i * N;
        const double a = part[i];
#pragma omp simd
        for (size_t j = i / 8 * 8; j < N; j++)
            row[j] = FMA(a, part[j], row[j]);
    }
}

/* A matrix whose rows may be apart. */
typedef struct {
    size_t rows, n, wide;
    const double *at;
} Rows;

/* ---- one run: the arrays of a model, its numbers, the last sample ---- */

enum { A_, B_, TABLE, GAIN, SHIFT, U_, V_, C_, S_, P_, OTHERS, ARRAYS };
enum { IDENTITY, RELU, CLIPPED, PERIODIC };
/* what is known of the last sample: it was only looked at; `learn` buffered it, before or after it
 * was looked at; it is learnt, as soon as there is a reason to touch V */
enum { NOTHING, SEEN, UNSEEN_WAITING, WAITING, LEARNT };

typedef struct {
    double *x, *h, *g, *e;
    double leverage, squares, hh, xx, score;
} Sample;

typedef struct {
    double kind, scale, far, fade, frame, count, largest, limit, others, trace, top, ridge, P_trace;
    double fit, fit2, own_scale, enough, steps_left, floor, share, most_loss, most_leverage;
    double stretch, shift, most_hidden; /* |h| <= stretch |x| + shift, and |h|^2 <= most_hidden */
} Numbers;

enum { NUMBERS = sizeof(Numbers) / sizeof(double) };

typedef struct {
    PyObject_HEAD
    Py_buffer views[ARRAYS];
    size_t n, N, wide, others_wide, table;
    Numbers is;
    long learnt, rejected;
    int state, of_own, ended, U_has_last; /* the caller adds the last sample to U */
    Sample last, next;
    double *q, *u, *wh, *part, *root, *minus, *gap, *z, *work, *memory;
} Run;

static unsigned long taken, declined; /* for tests: a kernel that always declines would go unseen */

static const double *in(const Run *run, int which) { return run->views[which].buf; }
static double *array(Run *run, int which) { return run->views[which].buf; }

INLINE void project(int fused, Run *run, const double *restrict x, double *restrict h)
{
    const size_t N = run->N;
    const double scale = run->is.scale, step = 1.0 / scale;
    const int kind = (int)run->is.kind;
    memcpy(h, in(run, B_), N * sizeof *h);
    if (run->views[A_].itemsize == sizeof(float)) /* exact: XA + b lies on a grid */
        add_float_rows(fused, run->n, N, N, x, run->views[A_].buf, h);
    else
        add_rows(fused, run->n, N, N, x, in(run, A_), h);
    for (size_t i = 0; i < N; i++)
        h[i] = rint(h[i] * scale);
    if (kind == CLIPPED || kind == PERIODIC) {
        const double *restrict table = in(run, TABLE);
        const int64_t end = (int64_t)run->table - 1;
        for (size_t i = 0; i < N; i++) { /* rows may hold anything, and only some of it is an integer */
            if (kind == PERIODIC)
                h[i] = table[fabs(h[i]) < 0x1p62 ? (int64_t)h[i] & end : 0]; /* M1 */
            else
                h[i] = table[h[i] >= 0.0 ? (h[i] < (double)end ? (int64_t)h[i] : end) : 0];
        }
    } else {
        for (size_t i = 0; i < N; i++)
            h[i] = kind == RELU && !(h[i] > 0.0) ? 0.0 : h[i] * step; /* M1 */
    }
}

/* Update everything but P, V and the level with the last sample; compute u, wh and what P loses. */
INLINE void begin_learning(int fused, Run *run, double w, int add)
{
    const size_t n = run->n, N = run->N;
    const Sample *s = &run->last;
    const double half = sqrt(w / (1.0 + w * s->leverage)), part = sqrt(w);
    double *restrict C = array(run, C_), *restrict S = array(run, S_);
    const double *restrict x = s->x;
    for (size_t i = 0; i < N; i++) {
        run->wh[i] = w * s->h[i];
        run->part[i] = part * s->h[i]; /* U += part'part and P -= root'root stay symmetric to the bit */
        run->root[i] = half * s->g[i];
        run->minus[i] = -run->root[i];
    }
    double *restrict U = array(run, U_);
    if (run->of_own) {
        memset(run->u, 0, N * sizeof *run->u);
        pass(fused, 1, add, 0, N, N, N, s->g, run->u, run->part, run->part, NULL, NULL, U); /* M2 */
    } else if (!run->U_has_last)
        update_triangle(fused && add == FUSED, N, run->part, U); /* M2 */
#pragma omp simd
    for (size_t j = 0; j < n; j++) {
        const double wt = w * x[j];
        C[j] += wt; /* M10 */
        S[j] += wt * x[j];
    }
}

/* Follow the level and the numbers; z is with V as it was before. */
INLINE void end_learning(int fused, Run *run, double w)
{
    const size_t N = run->N;
    Numbers *is = &run->is;
    const Sample *s = &run->last;
    const double d = w / (1.0 + w * s->leverage), gg = dot(fused, N, s->g, s->g);
    const double across = dot(fused, run->n, run->z, s->e); /* (qV)e, less (gV)e of own samples */
    if (run->of_own) {
        const double bend = dot(fused, N, s->g, run->u), left = 1.0 - d * s->leverage;
        is->fit += d * (d * bend * s->squares + 2.0 * across);
        is->fit += w * left * left * s->squares;
        is->fit2 += w * left * s->leverage - d * bend;
    } else {
        is->fit += d * s->squares;
        is->fit2 += d * (2.0 * across + d * gg * s->squares);
    }
    is->largest += w * fmax(fmax(s->hh, s->xx), 1.0);
    is->count += w;
    is->frame *= is->fade;
    is->P_trace -= d * gg;
    is->trace += s->hh;
    is->steps_left -= 1.0;
    run->learnt += 1;
    run->state = NOTHING;
}

static double level_score(const Run *run, double loss, double leverage)
{
    const Numbers *is = &run->is;
    const double n = (double)run->n, least = 1e-6;
    const int others = run->views[OTHERS].obj != NULL && !run->of_own;
    const double own = is->count * is->frame;
    const double count =
        own * (1.0 + is->fade) / (2.0 - own * (1.0 - is->fade)) + (others ? is->others : 0.0);
    const double freedom = run->of_own ? is->fit2 : (double)run->N - is->ridge * is->P_trace; /* M11 */
    const double sum = run->of_own ? is->fit / n : (is->fit - is->ridge * is->fit2) / n;
    const double weight = is->count + (others ? is->others : 0.0);
    const double left = fmax(1.0 - freedom / count, least);
    double usual = fmax(sum / weight / (left * left), is->floor);
    double strange = leverage * left * count / fmax(freedom, least);
    if (!run->of_own) {
        usual = fmin(usual, is->most_loss);
        if (is->most_leverage < INFINITY)
            strange = fmax(strange, leverage / is->most_leverage);
    }
    return is->share * (loss / usual) + (1.0 - is->share) * strange; /* M11 */
}

/* Learn the last sample, which weighs w, in one pass over each of P, V and others; score `next` in the
 * same passes if asked for. */
INLINE void learn_pass(int fused, int add, int score, Run *run, double w)
{
    const size_t n = run->n, N = run->N;
    const Sample *s = &run->last;
    double *h = run->next.h, *g = run->next.g, *y = run->next.e;
    begin_learning(fused, run, w, add);
    memset(run->q, 0, N * sizeof *run->q);
    pass(fused, 1, FUSED, score, N, N, N, run->of_own ? run->u : s->g, run->q, run->minus,
         run->root, h, g, array(run, P_)); /* M4 */
    for (size_t i = 0; i < N; i++)
        run->gap[i] = run->of_own ? run->q[i] - s->g[i] : run->q[i];
    memset(run->z, 0, n * sizeof *run->z);
    pass(fused, 1, add, score, N, n, run->wide, run->gap, run->z, run->wh, s->x, g, y, array(run, V_));
    if (run->views[OTHERS].obj != NULL)
        pass(fused, 1, NOT_ADDED, score, N, n, run->others_wide, run->q, run->z, NULL, NULL, g, y,
             array(run, OTHERS));
    end_learning(fused, run, w);
}

/* Learn the last sample if it is learnt or waiting; score `next`, if asked for, and make it the last.
 * `given` hidden values are copied instead of computed. */
INLINE void step_body(int fused, Run *run, int score, const double *given)
{
    const size_t n = run->n, N = run->N;
    const int learn = run->state >= WAITING;
    const double w = 1.0 / (run->is.frame * run->is.fade); /* M8 */
    Sample *next = &run->next;
    if (score) {
        if (given)
            memcpy(next->h, given, N * sizeof(double));
        else
            project(fused, run, next->x, next->h);
        memset(next->g, 0, N * sizeof(double));
        memset(next->e, 0, n * sizeof(double));
    }
    if (learn && score && run->is.fade == 1.0) /* exact sums: fused operations change no bit */
        learn_pass(fused, FUSED, 1, run, w);
    else if (learn && score)
        learn_pass(fused, ROUNDED, 1, run, w);
    else if (learn)
        learn_pass(fused, ROUNDED, 0, run, w);
    else if (score) {
        add_rows(fused, N, N, N, next->h, in(run, P_), next->g);
        add_rows(fused, N, n, run->wide, next->g, in(run, V_), next->e);
        if (run->views[OTHERS].obj != NULL)
            add_rows(fused, N, n, run->others_wide, next->g, in(run, OTHERS), next->e);
    }
    if (score) {
        double *restrict e = next->e;
        const double *restrict x = next->x;
#pragma omp simd
        for (size_t j = 0; j < n; j++)
            e[j] = x[j] - e[j];
        next->squares = dot(fused, n, e, e);
        next->leverage = dot(fused, N, next->h, next->g);
        next->xx = dot(fused, n, x, x);
        next->hh = dot(fused, N, next->h, next->h);
        next->score = level_score(run, next->squares / (double)n, next->leverage / run->is.frame);
        Sample swap = run->last;
        run->last = run->next;
        run->next = swap;
        run->state = SEEN;
        run->U_has_last = 0;
    }
}

/* C += the sum of rows, S += the sum of their squares. */
INLINE void column_sums_body(size_t k, size_t n, const double *restrict X, double *restrict C,
                             double *restrict S)
{
    for (size_t i = 0; i < k; i++) {
        const double *restrict x = X + i * n;
#pragma omp simd
        for (size_t j = 0; j < n; j++) {
            C[j] += x[j];
            S[j] += x[j] * x[j];
        }
    }
}

/* to += the sum of k arrays, four at a time: more reads are under way at once, and fewer writes. */
INLINE void add_arrays_body(size_t k, size_t n, const double *const *from, double *restrict to)
{
    size_t i = 0;
    for (; i + 4 <= k; i += 4) {
        const double *restrict a = from[i], *restrict b = from[i + 1];
        const double *restrict c = from[i + 2], *restrict d = from[i + 3];
#pragma omp simd
        for (size_t j = 0; j < n; j++)
            to[j] += (a[j] + b[j]) + (c[j] + d[j]);
    }
    for (; i < k; i++) {
        const double *restrict a = from[i];
#pragma omp simd
        for (size_t j = 0; j < n; j++)
            to[j] += a[j];
    }
}

/* M times `weight`, rounded to whole numbers, times `quantum`; never -0. */
INLINE void settle_body(size_t rows, size_t n, size_t wide, double weight, double quantum,
                        double *restrict M)
{
    for (size_t i = 0; i < rows; i++) {
        double *restrict m = M + i * wide;
#pragma omp simd
        for (size_t j = 0; j < n; j++)
            m[j] = rint(m[j] * weight) * quantum + 0.0;
    }
}

enum { TILE = 16, DEEP = 8 }; /* columns of V at a time, and rows, whose sums stay in registers */

/* The sum over k of M[i][k] T[k], for DEEP rows i; rows of M are `wide` apart, rows of T have TILE. */
INLINE void times_tile(int fused, size_t from, size_t wide, const double *restrict M,
                       const double *restrict T, double *restrict out)
{
    const double *restrict m1 = M + wide, *restrict m2 = m1 + wide, *restrict m3 = m2 + wide;
    const double *restrict m4 = m3 + wide, *restrict m5 = m4 + wide, *restrict m6 = m5 + wide;
    const double *restrict m7 = m6 + wide;
#pragma omp simd
    for (size_t j = 0; j < TILE; j++) {
        double s0 = 0.0, s1 = 0.0, s2 = 0.0, s3 = 0.0, s4 = 0.0, s5 = 0.0, s6 = 0.0, s7 = 0.0;
        for (size_t k = from; k < wide; k++) {
            const double t = T[k * TILE + j];
            s0 = FMA(M[k], t, s0);
            s1 = FMA(m1[k], t, s1);
            s2 = FMA(m2[k], t, s2);
            s3 = FMA(m3[k], t, s3);
            s4 = FMA(m4[k], t, s4);
            s5 = FMA(m5[k], t, s5);
            s6 = FMA(m6[k], t, s6);
            s7 = FMA(m7[k], t, s7);
        }
        out[j] = s0;
        out[j + TILE] = s1;
        out[j + 2 * TILE] = s2;
        out[j + 3 * TILE] = s3;
        out[j + 4 * TILE] = s4;
        out[j + 5 * TILE] = s5;
        out[j + 6 * TILE] = s6;
        out[j + 7 * TILE] = s7;
    }
}

/* What tells how B = PV fits own samples, V being that of all: <B, own V> and <B, UB>, tile by tile,
 * so that neither V nor B is stored. `side` is N in whole DEEPs; P (side, side) is symmetric, and U has
 * its upper triangle twice instead of the lower one; `tiles` is (3, side, TILE). Zeros fill up. */
INLINE void own_fit_body(int fused, size_t side, const double *restrict P, const double *restrict U,
                         const Rows *own, const Rows *others, double *restrict tiles, double *found)
{
    const size_t size = side * TILE;
    double *restrict mine = tiles, *restrict T = mine + size, *restrict B = T + size;
    double BV = 0.0, BUB = 0.0, UB[DEEP * TILE];
    for (size_t first = 0; first < own->n; first += TILE) {
        const size_t width = own->n - first < TILE ? own->n - first : TILE;
        if (width < TILE)
            memset(tiles, 0, 2 * size * sizeof *tiles);
        for (size_t i = 0; i < own->rows; i++) {
            const double *restrict v = own->at + i * own->wide + first;
            const double *restrict o = others->at + i * others->wide + first;
            for (size_t j = 0; j < width; j++) {
                mine[i * TILE + j] = v[j];
                T[i * TILE + j] = v[j] + o[j];
            }
        }
        for (size_t i = 0; i < side; i += DEEP)
            times_tile(fused, 0, side, P + i * side, T, B + i * TILE); /* M3 */
        BV += dot(fused, size, B, mine);
        for (size_t i = 0; i < side; i += DEEP) {
            times_tile(fused, i, side, U + i * side, B, UB);
            BUB += dot(fused, DEEP * TILE, UB, B + i * TILE);
        }
    }
    found[0] = BV;
    found[1] = BUB;
}

/* The loops for one kind of CPU; `vector` is the bits of a register that they are compiled for. */
typedef struct {
    int vector;
    void (*step)(Run *run, int score, const double *given);
    double (*to_grid)(size_t n, const double *x, const double *gain, const double *shift, double far,
                      double step, double *out);
    void (*column_sums)(size_t k, size_t n, const double *X, double *C, double *S);
    void (*add_arrays)(size_t k, size_t n, const double *const *from, double *to);
    void (*settle)(size_t rows, size_t n, size_t wide, double weight, double quantum, double *M);
    void (*own_fit)(size_t side, const double *P, const double *U, const Rows *own, const Rows *others,
                    double *tiles, double *found);
} Loops;

#define COMPILE_LOOPS(name, vector, fused, target)                                                     \
    target static void step_##name(Run *run, int score, const double *given)                           \
    {                                                                                                  \
        step_body(fused, run, score, given);                                                           \
    }                                                                                                  \
    target static double to_grid_##name(size_t n, const double *x, const double *gain,                 \
                                        const double *shift, double far, double step, double *out)     \
    {                                                                                                  \
        return to_grid(n, x, gain, shift, far, step, out);                                             \
    }                                                                                                  \
    target static void column_sums_##name(size_t k, size_t n, const double *X, double *C, double *S)   \
    {                                                                                                  \
        column_sums_body(k, n, X, C, S);                                                               \
    }                                                                                                  \
    target static void add_arrays_##name(size_t k, size_t n, const double *const *from, double *to)    \
    {                                                                                                  \
        add_arrays_body(k, n, from, to);                                                               \
    }                                                                                                  \
    target static void settle_##name(size_t rows, size_t n, size_t wide, double weight,                \
                                     double quantum, double *M)                                        \
    {                                                                                                  \
        settle_body(rows, n, wide, weight, quantum, M);                                                \
    }                                                                                                  \
    target static void own_fit_##name(size_t side, const double *P, const double *U, const Rows *own,  \
                                      const Rows *others, double *tiles, double *found)                \
    {                                                                                                  \
        own_fit_body(fused, side, P, U, own, others, tiles, found);                                    \
    }                                                                                                  \
    static const Loops name = {vector,           step_##name,   to_grid_##name, column_sums_##name,    \
                               add_arrays_##name, settle_##name, own_fit_##name};

COMPILE_LOOPS(any_cpu, 0, 0, )
#ifdef HAVE_AVX
COMPILE_LOOPS(avx2, 256, 1, __attribute__((target("avx2,fma"))))
COMPILE_LOOPS(avx512, 512, 1, __attribute__((target("avx2,fma,avx512f,prefer-vector-width=512"))))
#endif
static const Loops *loops = &any_cpu;

/* ---- what Python calls ---- */

static PyTypeObject *array_type; /* numpy.ndarray */

/* Whether it is of a subclass of NumPy's arrays: its buffer does not tell what a mask hides. */
static int is_special_array(PyObject *given)
{
    return Py_TYPE(given) != array_type && PyType_IsSubtype(Py_TYPE(given), array_type);
}

/* Put one sample of readings on the grid; false if it is of another kind or not finite. */
static int take_readings(Run *run, PyObject *given, double *out)
{
    Py_buffer view;
    if (run->ended || is_special_array(given) || !PyObject_CheckBuffer(given) ||
        PyObject_GetBuffer(given, &view, PyBUF_FORMAT | PyBUF_STRIDES) < 0) {
        PyErr_Clear();
        declined++;
        return 0;
    }
    int ok = view.ndim == 1 && view.shape[0] == (Py_ssize_t)run->n && view.itemsize == 8 &&
             view.format != NULL && strcmp(view.format, "d") == 0;
    if (ok) {
        const double *x = view.buf;
        if (view.strides[0] != 8 || (uintptr_t)view.buf % sizeof(double)) {
            double *copy = run->next.e; /* not in use yet */
            for (size_t j = 0; j < run->n; j++)
                memcpy(copy + j, (const char *)view.buf + (Py_ssize_t)j * view.strides[0], 8);
            x = copy;
        }
        ok = loops->to_grid(run->n, x, in(run, GAIN), in(run, SHIFT), run->is.far, 1.0 / run->is.scale,
                            out) == 0.0;
    }
    PyBuffer_Release(&view);
    declined += !ok;
    return ok;
}

/* Whether a buffer holds numbers where the loops may read them; it was asked for with its format. */
static int has_format(const Py_buffer *view, const char *format)
{
    return view->format != NULL && strcmp(view->format, format) == 0 &&
           (uintptr_t)view->buf % sizeof(double) == 0;
}

static int has_doubles(const Py_buffer *view) { return has_format(view, "d"); }

/* Get n floats in a row; false with an error if it is of another kind. */
static int get_row(PyObject *given, size_t n, int flags, Py_buffer *view)
{
    if (PyObject_GetBuffer(given, view, flags | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0)
        return 0;
    if (has_doubles(view) && (size_t)view->len == n * sizeof(double))
        return 1;
    PyErr_Format(PyExc_ValueError, "found %zd bytes, expected %zu floats", view->len, n);
    PyBuffer_Release(view);
    return 0;
}

/* Get contiguous floats from each argument, the last `changed` of them to be changed. */
static int get_floats(PyObject *const *args, int count, int changed, Py_buffer *views)
{
    for (int i = 0; i < count; i++) {
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
        const int failed = PyObject_GetBuffer(args[i], &views[i],
                                              flags | (i >= count - changed ? PyBUF_WRITABLE : 0));
        if (!failed && has_doubles(&views[i]))
            continue;
        if (!failed)
            PyErr_Format(PyExc_ValueError, "argument %d of arrays does not hold floats", i);
        for (int held = failed ? i : i + 1; held-- > 0;)
            PyBuffer_Release(&views[held]);
        return 0;
    }
    return 1;
}

/* Take a matrix of doubles whose rows may be apart; false if it is another kind of array. */
static int as_rows(const Py_buffer *view, Rows *rows)
{
    const int ok = has_doubles(view) && view->ndim == 2 && view->strides[1] == 8 &&
                   view->strides[0] % 8 == 0 && view->strides[0] >= 8 * view->shape[1];
    if (ok)
        *rows = (Rows){(size_t)view->shape[0], (size_t)view->shape[1], (size_t)view->strides[0] / 8,
                       view->buf};
    return ok;
}

static void release(Py_buffer *views, int count)
{
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&views[i]);
}

static PyObject *unlike_sizes(void)
{
    PyErr_SetString(PyExc_ValueError, "found arrays of unlike sizes");
    return NULL;
}

static int copy_row(PyObject *given, size_t n, double *out)
{
    Py_buffer view;
    if (!get_row(given, n, PyBUF_SIMPLE, &view))
        return 0;
    memcpy(out, view.buf, n * sizeof(double));
    PyBuffer_Release(&view);
    return 1;
}

static int fill(PyObject *given, size_t n, const double *from)
{
    Py_buffer view;
    if (!get_row(given, n, PyBUF_WRITABLE, &view))
        return 0;
    memcpy(view.buf, from, n * sizeof(double));
    PyBuffer_Release(&view);
    return 1;
}

/* Whether the last sample, which was looked at, can be learnt without a decision of Python's. */
static int can_learn(const Run *run)
{
    const Numbers *is = &run->is;
    const Sample *s = &run->last;
    const double w = 1.0 / (is->frame * is->fade);
    const double d = w / (1.0 + w * s->leverage);
    const int others = run->views[OTHERS].obj != NULL;
    const int of_own = others && (is->count + w) * (is->frame * is->fade) >= is->enough;
    return s->hh + s->xx < INFINITY && /* which NaN is not, and fmax would not tell */
           is->largest + w * fmax(fmax(s->hh, s->xx), 1.0) < is->limit &&
           is->trace + s->hh < is->top && of_own == run->of_own && d > 0.0 && d < INFINITY;
}

/* Whether a sample that was not looked at fits into the sums, whatever its hidden values are. */
static int surely_fits(const Run *run, const double *x)
{
    const Numbers *is = &run->is;
    const double w = 1.0 / (is->frame * is->fade), xx = dot(0, run->n, x, x);
    const double most = is->stretch * sqrt(xx) + is->shift;
    const double load = fmax(fmax(xx, fmin(most * most, is->most_hidden)), 1.0);
    return is->largest + w * load < is->limit;
}

/* Whether `next` can be scored now; learns what waits if P is due to be solved afterwards. */
static int can_score(Run *run)
{
    if (run->state == UNSEEN_WAITING) { /* look at it first */
        if (run->is.steps_left < 1.0)
            return 0;
        memcpy(run->work, run->next.x, run->n * sizeof(double));
        run->state = NOTHING;
        memcpy(run->next.x, run->last.x, run->n * sizeof(double));
        loops->step(run, 1, NULL);
        memcpy(run->next.x, run->work, run->n * sizeof(double));
        run->state = WAITING;
        if (!can_learn(run))
            return 0;
    }
    if (run->is.steps_left - (run->state >= WAITING) >= 1.0)
        return 1;
    if (run->state >= WAITING)
        loops->step(run, 0, NULL);
    return 0;
}

/* Score `next`; false if Python must do it. */
static int score_next(Run *run, const double *given)
{
    if (run->ended || !can_score(run)) {
        declined++;
        return 0;
    }
    loops->step(run, 1, given);
    taken++;
    return 1;
}

static int is_last(const Run *run, const double *x)
{
    return run->state == SEEN && memcmp(x, run->last.x, run->n * sizeof(double)) == 0;
}

static double as_limit(PyObject *given)
{
    return given == Py_None ? INFINITY : PyFloat_AsDouble(given);
}

static int is_rejected(const Run *run, double limit)
{
    const Numbers *is = &run->is;
    return run->last.score > limit && is->count * is->frame + is->others >= is->enough;
}

/* Learn the last sample unless it is rejected; false if Python must do it. */
static int learn_last(Run *run, double limit)
{
    if (is_rejected(run, limit)) {
        run->rejected++;
        run->state = NOTHING;
    } else if (can_learn(run)) {
        run->state = LEARNT;
    } else {
        declined++;
        return 0;
    }
    return 1;
}

static PyObject *none(void) { Py_RETURN_NONE; }

static int must_have(Py_ssize_t found, Py_ssize_t expected)
{
    if (found != expected)
        PyErr_Format(PyExc_TypeError, "found %zd arguments, expected %zd", found, expected);
    return found == expected;
}

/* Learn `next` after it was scored, which costs nothing if it was the last to be scored. */
static PyObject *learn_next(Run *run, double limit)
{
    if (!is_last(run, run->next.x) && !score_next(run, NULL))
        return none();
    const double score = run->last.score;
    return learn_last(run, limit) ? PyFloat_FromDouble(score) : none();
}

PyDoc_STRVAR(score_doc, "score(x): the score of one sample of readings, or None.");
static PyObject *run_score(Run *run, PyObject *const *args, Py_ssize_t count)
{
    if (!must_have(count, 1))
        return NULL;
    if (!take_readings(run, args[0], run->next.x))
        return none();
    return score_next(run, NULL) ? PyFloat_FromDouble(run->last.score) : none();
}

PyDoc_STRVAR(loss_doc, "loss(x): the mean squared error of one sample of readings, or None.");
static PyObject *run_loss(Run *run, PyObject *const *args, Py_ssize_t count)
{
    if (!must_have(count, 1))
        return NULL;
    if (!take_readings(run, args[0], run->next.x) || !score_next(run, NULL))
        return none();
    return PyFloat_FromDouble(run->last.squares / (double)run->n); /* M9 */
}

PyDoc_STRVAR(look_doc, "look(x, row, hidden): score, and fill what it is on the grid and in the layer.");
static PyObject *run_look(Run *run, PyObject *const *args, Py_ssize_t count)
{
    if (!must_have(count, 3))
        return NULL;
    PyObject *score = run_score(run, args, 1);
    if (score == NULL || score == Py_None)
        return score;
    if (fill(args[1], run->n, run->last.x) && fill(args[2], run->N, run->last.h))
        return score;
    Py_DECREF(score);
    return NULL;
}

PyDoc_STRVAR(both_doc, "learn_and_score(x, limit): score, and learn unless it is above the limit.");
static PyObject *run_both(Run *run, PyObject *const *args, Py_ssize_t count)
{
    if (!must_have(count, 2))
        return NULL;
    const double limit = as_limit(args[1]);
    if (PyErr_Occurred())
        return NULL;
    if (!take_readings(run, args[0], run->next.x))
        return none();
    return learn_next(run, limit);
}

PyDoc_STRVAR(learn_doc, "learn(x): buffer one sample of readings until the next score; True or None.");
static PyObject *run_learn(Run *run, PyObject *const *args, Py_ssize_t count)
{
    if (!must_have(count, 1))
        return NULL;
    if (run->state >= UNSEEN_WAITING && run->state != LEARNT)
        return none(); /* a second one: Python learns them together */
    if (!take_readings(run, args[0], run->next.x))
        return none();
    if (is_last(run, run->next.x)) {
        if (!can_learn(run)) {
            declined++;
            return none();
        }
        run->state = WAITING;
    } else {
        if (run->state == LEARNT)
            loops->step(run, 0, NULL);
        if (!surely_fits(run, run->next.x)) {
            declined++;
            return none();
        }
        memcpy(run->last.x, run->next.x, run->n * sizeof(double));
        run->state = UNSEEN_WAITING;
    }
    return PyBool_FromLong(1);
}

PyDoc_STRVAR(row_doc,
             "learn_row(row, limit): learn a sample that is on the grid, unless it is above the limit;\n"
             "its score, or None. It costs little if it was the last to be scored.");
static PyObject *run_row(Run *run, PyObject *const *args, Py_ssize_t count)
{
    if (!must_have(count, 2))
        return NULL;
    const double limit = as_limit(args[1]);
    if (PyErr_Occurred() || !copy_row(args[0], run->n, run->next.x))
        return NULL;
    return learn_next(run, limit);
}

PyDoc_STRVAR(score_row_doc,
             "score_row(row, hidden): the score of a sample that is on the grid, whose hidden values\n"
             "are at hand, or None.");
static PyObject *run_score_row(Run *run, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer hidden;
    if (!must_have(count, 2) || !copy_row(args[0], run->n, run->next.x) ||
        !get_row(args[1], run->N, PyBUF_SIMPLE, &hidden))
        return NULL;
    const int scored = score_next(run, hidden.buf);
    PyBuffer_Release(&hidden);
    return scored ? PyFloat_FromDouble(run->last.score) : none();
}

PyDoc_STRVAR(rows_doc,
             "learn_rows(X, H, scores, limit): learn rows on the grid. Returns how many were done, and\n"
             "whether the caller must add H'H of them to U, which is faster for many: rows of H that\n"
             "are not learnt become 0.");
static PyObject *run_rows(Run *run, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer views[3];
    if (!must_have(count, 4))
        return NULL;
    const double limit = as_limit(args[3]);
    if (PyErr_Occurred() || !get_floats(args, 3, 2, views))
        return NULL;
    const double *X = views[0].buf;
    double *H = views[1].buf, *scores = views[2].buf;
    const size_t k = (size_t)views[2].len / sizeof(double);
    const int ok = (size_t)views[0].len == k * run->n * sizeof(double) &&
                   (size_t)views[1].len == k * run->N * sizeof(double);
    const int leaves_U = run->is.fade == 1.0 && !run->of_own; /* exact in any order, and not read */
    size_t done = 0;
    for (; ok && done < k; done++) {
        double *h = H + done * run->N;
        memcpy(run->next.x, X + done * run->n, run->n * sizeof(double));
        if (!score_next(run, h))
            break;
        scores[done] = run->last.score;
        if (!learn_last(run, limit))
            break;
        run->U_has_last = leaves_U;
        if (run->state != LEARNT)
            memset(h, 0, run->N * sizeof(double));
    }
    release(views, 3);
    return ok ? Py_BuildValue("nO", (Py_ssize_t)done, leaves_U ? Py_True : Py_False) : unlike_sizes();
}

PyDoc_STRVAR(settle_doc,
             "settle(row): learn what is learnt; fill `row` with a sample that is only buffered.\n"
             "Returns what Python keeps of the model, and whether there is such a row.");
static PyObject *run_settle(Run *run, PyObject *const *args, Py_ssize_t count)
{
    if (!must_have(count, 1))
        return NULL;
    const int waits = run->state == WAITING || run->state == UNSEEN_WAITING;
    if (waits && !fill(args[0], run->n, run->last.x))
        return NULL;
    if (run->state == LEARNT)
        loops->step(run, 0, NULL);
    run->state = NOTHING;
    run->ended = 1; /* Python has the numbers now: a call that comes too late must change nothing */
    const Numbers *is = &run->is;
    PyObject *found = Py_BuildValue("dddddddllO", is->count, is->largest, is->frame, is->trace,
                                    is->P_trace, is->fit, is->fit2, run->learnt, run->rejected,
                                    waits ? Py_True : Py_False);
    return found;
}

PyDoc_STRVAR(counts_doc, "counts(): the samples known, and own ones, the last included if learnt.");
static PyObject *run_counts(Run *run, PyObject *Py_UNUSED(ignored))
{
    const Numbers *is = &run->is;
    const int learnt = run->state == LEARNT, waits = run->state >= UNSEEN_WAITING && !learnt;
    const double own = learnt ? is->count + 1.0 / (is->frame * is->fade) : is->count;
    const double frame = learnt ? is->frame * is->fade : is->frame;
    return Py_BuildValue("dd", own * frame + is->others + waits, own * frame + waits);
}

static PyMethodDef run_methods[] = {
    {"score", (PyCFunction)(void (*)(void))run_score, METH_FASTCALL, score_doc},
    {"loss", (PyCFunction)(void (*)(void))run_loss, METH_FASTCALL, loss_doc},
    {"look", (PyCFunction)(void (*)(void))run_look, METH_FASTCALL, look_doc},
    {"learn_and_score", (PyCFunction)(void (*)(void))run_both, METH_FASTCALL, both_doc},
    {"learn", (PyCFunction)(void (*)(void))run_learn, METH_FASTCALL, learn_doc},
    {"learn_row", (PyCFunction)(void (*)(void))run_row, METH_FASTCALL, row_doc},
    {"score_row", (PyCFunction)(void (*)(void))run_score_row, METH_FASTCALL, score_row_doc},
    {"learn_rows", (PyCFunction)(void (*)(void))run_rows, METH_FASTCALL, rows_doc},
    {"settle", (PyCFunction)(void (*)(void))run_settle, METH_FASTCALL, settle_doc},
    {"counts", (PyCFunction)run_counts, METH_NOARGS, counts_doc},
    {NULL, NULL, 0, NULL},
};

/* Hold an array of doubles, or of floats for A; `expected` is its size, or 0 for any. Rows of V and of
 * others' may be apart. */
static int hold(Run *run, int which, PyObject *given, size_t expected)
{
    const int changes = which == U_ || which == V_ || which == C_ || which == S_ || which == P_;
    const int rows = which == V_ || which == OTHERS;
    const int layout = rows           ? PyBUF_STRIDES
                       : which == A_ ? PyBUF_C_CONTIGUOUS
                       : which == U_ || which == P_ ? PyBUF_F_CONTIGUOUS /* one triangle is in use */
                                                    : PyBUF_ANY_CONTIGUOUS;
    if (given == Py_None && (which == TABLE || which == OTHERS))
        return 1;
    Py_buffer *view = &run->views[which];
    if (PyObject_GetBuffer(given, view, layout | PyBUF_FORMAT | (changes ? PyBUF_WRITABLE : 0)) < 0)
        return 0;
    int ok = has_doubles(view) || (which == A_ && has_format(view, "f"));
    ok = ok && (expected == 0 || view->len == (Py_ssize_t)expected * view->itemsize);
    if (ok && rows) {
        Rows found = {0};
        ok = as_rows(view, &found) && found.rows == run->N;
        *(which == V_ ? &run->wide : &run->others_wide) = found.wide;
    }
    if (!ok)
        PyErr_Format(PyExc_ValueError, "array %d has %zd bytes, expected %zu floats in rows", which,
                     view->len, expected);
    return ok;
}

/* Copy the triangle of a matrix that Python uses into the other one, by blocks of a cache line. */
static void mirror(size_t N, double *M)
{
    const size_t line = 8;
    for (size_t top = 0; top < N; top += line)
        for (size_t i = top; i < N; i++)
            for (size_t j = top; j < i && j < top + line; j++)
                M[i * N + j] = M[j * N + i];
}

static PyObject *run_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *arrays[ARRAYS], *numbers;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOO", &arrays[A_], &arrays[B_], &arrays[TABLE],
                          &arrays[GAIN], &arrays[SHIFT], &arrays[U_], &arrays[V_], &arrays[C_],
                          &arrays[S_], &arrays[P_], &arrays[OTHERS], &numbers))
        return NULL;
    if (!PyTuple_Check(numbers) || PyTuple_Size(numbers) != NUMBERS) {
        PyErr_Format(PyExc_TypeError, "expected %d numbers", (int)NUMBERS);
        return NULL;
    }
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Run *run = (Run *)make(type, 0); /* zeroed */
    if (run == NULL)
        return NULL;
    for (int i = 0; i < NUMBERS && !PyErr_Occurred(); i++)
        ((double *)&run->is)[i] = PyFloat_AsDouble(PyTuple_GetItem(numbers, i));
    if (PyErr_Occurred() || !hold(run, B_, arrays[B_], 0) || !hold(run, GAIN, arrays[GAIN], 0))
        goto failed;
    const size_t N = run->N = (size_t)run->views[B_].len / sizeof(double);
    const size_t n = run->n = (size_t)run->views[GAIN].len / sizeof(double);
    const size_t sizes[ARRAYS] = {n * N, N, 0, n, n, N * N, N * n, n, n, N * N, N * n};
    for (int i = 0; i < ARRAYS; i++)
        if (i != B_ && i != GAIN && !hold(run, i, arrays[i], sizes[i]))
            goto failed;
    run->table = (size_t)run->views[TABLE].len / sizeof(double);
    const int kind = (int)run->is.kind, has_table = run->table > 0;
    const int has_period = has_table && (run->table & (run->table - 1)) == 0; /* for its mask */
    if (kind == CLIPPED ? !has_table : kind == PERIODIC ? !has_period : kind != IDENTITY && kind != RELU) {
        PyErr_Format(PyExc_ValueError, "activation %d does not fit a table of %zu", kind, run->table);
        goto failed;
    }
    run->of_own = run->is.own_scale != 0.0;
    mirror(N, array(run, P_));
    if (run->of_own)
        mirror(N, array(run, U_));
    const size_t line = 8, n8 = (n + line - 1) / line * line, N8 = (N + line - 1) / line * line;
    run->memory = PyMem_Calloc(6 * n8 + 11 * N8 + line, sizeof(double));
    if (run->memory == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    double *at = run->memory + (64 - (uintptr_t)run->memory % 64) % 64 / sizeof(double);
    double **long_ones[] = {&run->last.x, &run->last.e, &run->next.x,
                            &run->next.e, &run->z,      &run->work};
    double **short_ones[] = {&run->last.h, &run->last.g, &run->next.h, &run->next.g,
                             &run->q,      &run->u,      &run->wh,     &run->part,
                             &run->root,   &run->minus,  &run->gap};
    for (int i = 0; i < 6; i++, at += n8)
        *long_ones[i] = at;
    for (int i = 0; i < 11; i++, at += N8)
        *short_ones[i] = at;
    return (PyObject *)run;
failed:
    Py_DECREF(run);
    return NULL;
}

static void run_dealloc(Run *run)
{
    PyTypeObject *type = Py_TYPE((PyObject *)run);
    for (int i = 0; i < ARRAYS; i++)
        if (run->views[i].obj)
            PyBuffer_Release(&run->views[i]);
    PyMem_Free(run->memory);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(run);
    Py_DECREF(type);
}

PyDoc_STRVAR(run_doc, "Scores and learns samples one by one, from what a model has solved.");
static PyType_Slot run_slots[] = {
    {Py_tp_doc, (void *)run_doc},
    {Py_tp_new, (void *)run_new},
    {Py_tp_dealloc, (void *)run_dealloc},
    {Py_tp_methods, run_methods},
    {0, NULL},
};
static PyType_Spec run_spec = {"edgemerge.kernel._kernel.Run", sizeof(Run), 0, Py_TPFLAGS_DEFAULT,
                               run_slots};

PyDoc_STRVAR(tally_doc, "tally(): the samples scored in the kernel so far, and those declined.");
static PyObject *tally(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("kk", taken, declined);
}

PyDoc_STRVAR(grid_rows_doc,
             "grid_rows(far, step, gain, shift, X, out): put rows of readings on the grid;\n"
             "False if one is not finite: then `out` is of no use.");
static PyObject *grid_rows(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer views[4]; /* gain, shift, X, out */
    if (!must_have(count, 6))
        return NULL;
    const double far = PyFloat_AsDouble(args[0]), step = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred() || !get_floats(args + 2, 4, 1, views))
        return NULL;
    const size_t n = (size_t)views[0].len / 8, k = n ? (size_t)views[2].len / 8 / n : 0;
    const int ok = views[1].len == views[0].len && views[3].len == views[2].len &&
                   k * n * 8 == (size_t)views[2].len;
    double bad = 0.0;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS for (size_t i = 0; i < k; i++) bad +=
            loops->to_grid(n, (const double *)views[2].buf + i * n, views[0].buf, views[1].buf, far, step,
                           (double *)views[3].buf + i * n);
        Py_END_ALLOW_THREADS
    }
    release(views, 4);
    return ok ? PyBool_FromLong(bad == 0.0) : unlike_sizes();
}

PyDoc_STRVAR(column_sums_doc, "column_sums(X, C, S): add rows to C, and their squares to S.");
static PyObject *column_sums(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer views[3];
    if (!must_have(count, 3) || !get_floats(args, 3, 2, views))
        return NULL;
    const size_t n = (size_t)views[1].len / 8, k = n ? (size_t)views[0].len / 8 / n : 0;
    const int ok = views[1].len == views[2].len && k * n * 8 == (size_t)views[0].len;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        loops->column_sums(k, n, views[0].buf, views[1].buf, views[2].buf);
        Py_END_ALLOW_THREADS
    }
    release(views, 3);
    return ok ? none() : unlike_sizes();
}

enum { MOST_ARRAYS = 8 };

PyDoc_STRVAR(add_arrays_doc,
             "add_arrays(to, arrays): add a tuple of at most MOST_ARRAYS arrays to one; False, and\n"
             "nothing added, unless all are as many floats, row by row and without gaps.");
static PyObject *add_arrays(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer views[MOST_ARRAYS + 1];
    const double *from[MOST_ARRAYS];
    if (!must_have(count, 2))
        return NULL;
    const Py_ssize_t k = PyTuple_Check(args[1]) ? PyTuple_Size(args[1]) : MOST_ARRAYS + 1;
    if (k > MOST_ARRAYS)
        return unlike_sizes();
    int held = 0, ok = 1;
    for (; ok && held <= k; held += ok) {
        PyObject *each = held < k ? PyTuple_GetItem(args[1], held) : args[0];
        const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (held < k ? 0 : PyBUF_WRITABLE);
        ok = PyObject_GetBuffer(each, &views[held], flags) == 0;
        if (ok && held < k)
            from[held] = views[held].buf;
    }
    PyErr_Clear();
    for (int i = 0; ok && i <= k; i++)
        ok = has_doubles(&views[i]) && views[i].len == views[k].len;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS
        loops->add_arrays((size_t)k, (size_t)views[k].len / sizeof(double), from, views[k].buf);
        Py_END_ALLOW_THREADS
    }
    release(views, held);
    return PyBool_FromLong(ok);
}

PyDoc_STRVAR(settle_sums_doc,
             "settle_sums(weight, quantum, M): multiply sums by a weight, and round them to whole\n"
             "numbers, times the quantum.");
static PyObject *settle_sums(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer view;
    if (!must_have(count, 3))
        return NULL;
    const double weight = PyFloat_AsDouble(args[0]), quantum = PyFloat_AsDouble(args[1]);
    const int flags = PyBUF_STRIDES | PyBUF_FORMAT | PyBUF_WRITABLE;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[2], &view, flags) < 0)
        return NULL;
    Rows rows = {1, (size_t)view.len / 8, (size_t)view.len / 8, view.buf};
    int ok = has_doubles(&view);
    if (ok && !PyBuffer_IsContiguous(&view, 'A')) /* rows that start at cache lines */
        ok = as_rows(&view, &rows);
    if (ok)
        loops->settle(rows.rows, rows.n, rows.wide, weight, quantum, view.buf);
    release(&view, 1);
    return ok ? none() : unlike_sizes();
}

PyDoc_STRVAR(own_fit_doc,
             "own_fit(P, U, V, others): <B, V>, <B, UB> and <U, P> for B = P(V + others), with the\n"
             "triangles of P and U that Python uses. None where BLAS is faster, without AVX2, and for\n"
             "arrays of another layout or size.");
static PyObject *own_fit(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer views[4];
    Rows rows[4];
    if (!must_have(count, 4))
        return NULL;
    int held = 0, ok = loops->vector > 0;
    while (ok && held < 4) {
        ok = PyObject_GetBuffer(args[held], &views[held], PyBUF_STRIDES | PyBUF_FORMAT) == 0;
        if (!ok)
            break;
        if (held < 2) /* the columns of a symmetric matrix are its rows */
            ok = has_doubles(&views[held]) && PyBuffer_IsContiguous(&views[held], 'F');
        else
            ok = as_rows(&views[held], &rows[held]);
        held++;
    }
    PyErr_Clear();
    const size_t N = ok ? rows[2].rows : 0, side = (N + DEEP - 1) / DEEP * DEEP, size = side * side;
    const Py_ssize_t square = (Py_ssize_t)(N * N * sizeof(double));
    ok = ok && views[0].len == square && views[1].len == square && rows[3].rows == N &&
         rows[3].n == rows[2].n;
    const size_t line = 8;
    double found[3] = {0.0, 0.0, 0.0};
    double *memory = ok ? PyMem_Calloc(2 * size + 3 * side * TILE + line, sizeof(double)) : NULL;
    if (memory != NULL) {
        double *tiles = memory + (64 - (uintptr_t)memory % 64) % 64 / sizeof(double);
        double *P = tiles + 3 * side * TILE, *U = P + size;
        for (size_t i = 0; i < N; i++) {
            const double *p = (const double *)views[0].buf + i * N;
            const double *u = (const double *)views[1].buf + i * N;
            for (size_t j = i; j < N; j++) {
                P[i * side + j] = p[j];
                U[i * side + j] = i == j ? u[j] : 2.0 * u[j];
                found[2] += U[i * side + j] * p[j];
            }
        }
        mirror(side, P);
        Py_BEGIN_ALLOW_THREADS
        loops->own_fit(side, P, U, &rows[2], &rows[3], tiles, found);
        Py_END_ALLOW_THREADS
        PyMem_Free(memory);
    }
    release(views, held);
    if (!ok)
        return none();
    return memory ? Py_BuildValue("ddd", found[0], found[1], found[2]) : PyErr_NoMemory();
}

PyDoc_STRVAR(use_loops_doc,
             "use_loops(most): take the loops for the widest vectors that the CPU has, of at most so\n"
             "many bits: 512 (AVX-512), 256 (AVX2) or 0 (every CPU). Returns the bits.");
static PyObject *use_loops(PyObject *Py_UNUSED(module), PyObject *most)
{
    const long bits = PyLong_AsLong(most);
    if (PyErr_Occurred())
        return NULL;
    loops = &any_cpu;
#ifdef HAVE_AVX
    __builtin_cpu_init();
    const int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (has_avx2 && bits >= avx2.vector)
        loops = &avx2;
    if (has_avx2 && __builtin_cpu_supports("avx512f") && bits >= avx512.vector)
        loops = &avx512;
#endif
    return PyLong_FromLong(loops->vector);
}

static PyMethodDef methods[] = {
    {"grid_rows", (PyCFunction)(void (*)(void))grid_rows, METH_FASTCALL, grid_rows_doc},
    {"column_sums", (PyCFunction)(void (*)(void))column_sums, METH_FASTCALL, column_sums_doc},
    {"add_arrays", (PyCFunction)(void (*)(void))add_arrays, METH_FASTCALL, add_arrays_doc},
    {"settle_sums", (PyCFunction)(void (*)(void))settle_sums, METH_FASTCALL, settle_sums_doc},
    {"own_fit", (PyCFunction)(void (*)(void))own_fit, METH_FASTCALL, own_fit_doc},
    {"tally", tally, METH_NOARGS, tally_doc},
    {"use_loops", use_loops, METH_O, use_loops_doc},
    {NULL, NULL, 0, NULL},
};

static int load(PyObject *module)
{
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (numpy == NULL)
        return -1;
    array_type = (PyTypeObject *)PyObject_GetAttrString(numpy, "ndarray"); /* kept for good */
    Py_DECREF(numpy);
    if (array_type == NULL)
        return -1;
    PyObject *type = PyType_FromModuleAndSpec(module, &run_spec, NULL);
    if (type == NULL)
        return -1;
    const int failed = PyModule_AddObjectRef(module, "Run", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)load}, {0, NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernel", "The compiled kernel.", 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&module); }
