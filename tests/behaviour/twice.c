/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A handle that is destroyed a second time: programs do so where they clean up after an error, and the kernel
 * answers EINVAL. */
#include "work.h"

enum { RESTS = 1000 };

struct objects {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_comp_channel *channel;
    char memory[4096];
};

static struct objects here;

static void open_all(void)
{
    here.context = open_the_device();
    here.pd = ibv_alloc_pd(here.context);
    here.channel = ibv_create_comp_channel(here.context);
    here.cq = ibv_create_cq(here.context, 16, NULL, NULL, 0);
    assert_true(here.pd && here.channel && here.cq);
}

static void close_all(void)
{
    CHECK_ZERO(ibv_destroy_cq(here.cq));
    CHECK_ZERO(ibv_destroy_comp_channel(here.channel));
    CHECK_ZERO(ibv_dealloc_pd(here.pd));
    CHECK_ZERO(ibv_close_device(here.context));
}

static void *make_qp(void)
{
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC, .send_cq = here.cq, .recv_cq = here.cq, .cap = {1, 1, 1, 1, 0}};

    return ibv_create_qp(here.pd, &init);
}

static int end_qp(void *qp)
{
    return ibv_destroy_qp(qp);
}

static void *make_cq(void)
{
    return ibv_create_cq(here.context, 1, NULL, here.channel, 0);
}

static int end_cq(void *cq)
{
    return ibv_destroy_cq(cq);
}

static void *make_srq(void)
{
    struct ibv_srq_init_attr init = {.attr = {1, 1, 0}};

    return ibv_create_srq(here.pd, &init);
}

static int end_srq(void *srq)
{
    return ibv_destroy_srq(srq);
}

static void *make_mr(void)
{
    return ibv_reg_mr(here.pd, here.memory, sizeof here.memory, IBV_ACCESS_LOCAL_WRITE);
}

static int end_mr(void *mr)
{
    return ibv_dereg_mr(mr);
}

static void *make_mw(void)
{
    return ibv_alloc_mw(here.pd, IBV_MW_TYPE_2);
}

static int end_mw(void *mw)
{
    return ibv_dealloc_mw(mw);
}

static void *make_ah(void)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};

    CHECK_ZERO(ibv_query_gid(here.context, 1, 0, &attr.grh.dgid));
    return ibv_create_ah(here.pd, &attr);
}

static int end_ah(void *ah)
{
    return ibv_destroy_ah(ah);
}

static void *make_pd(void)
{
    return ibv_alloc_pd(here.context);
}

static int end_pd(void *pd)
{
    return ibv_dealloc_pd(pd);
}

static void *make_channel(void)
{
    return ibv_create_comp_channel(here.context);
}

static int end_channel(void *channel)
{
    return ibv_destroy_comp_channel(channel);
}

static const struct kind {
    const char *name;
    void *(*make)(void);
    int (*end)(void *);
} kinds[] = {
    {"QP", make_qp, end_qp},    {"CQ", make_cq, end_cq},
    {"SRQ", make_srq, end_srq}, {"MR", make_mr, end_mr},
    {"MW", make_mw, end_mw},    {"AH", make_ah, end_ah},
    {"PD", make_pd, end_pd},    {"channel", make_channel, end_channel},
};

static void *make(const struct kind *kind)
{
    void *object = kind->make();

    CHECK(object, "%s: %s", kind->name, strerror(errno));
    return object;
}

static void end(const struct kind *kind, void *object, int expected)
{
    const int error = kind->end(object);

    CHECK(error == expected, "%s: %d and not %d", kind->name, error, expected);
}

static void the_second_destroy_is_refused(void **state)
{
    open_all();
    for (size_t i = 0; i < COUNT(kinds); i++) {
        void *object = make(&kinds[i]);

        end(&kinds[i], object, 0);
        for (int again = 0; again < 3; again++)
            end(&kinds[i], object, EINVAL);
    }
    close_all();
}

/* Nobody's users are fewer than there are. */
static void the_second_destroy_counts_nothing(void **state)
{
    open_all();
    for (size_t i = 0; i < COUNT(kinds); i++) {
        void *first = make(&kinds[i]), *second = make(&kinds[i]);

        end(&kinds[i], first, 0);
        end(&kinds[i], first, EINVAL);
        if (kinds[i].make == make_cq)
            assert_int_equal(ibv_destroy_comp_channel(here.channel), EBUSY);
        else if (kinds[i].make != make_pd && kinds[i].make != make_channel)
            assert_int_equal(ibv_dealloc_pd(here.pd), EBUSY);
        end(&kinds[i], second, 0);
        end(&kinds[i], first, EINVAL);
    }
    close_all();
}

static void a_handle_rests_for_a_thousand_destroys(void **state)
{
    open_all();
    for (size_t i = 0; i < COUNT(kinds); i++) {
        void *first = make(&kinds[i]);

        end(&kinds[i], first, 0);
        for (int k = 0; k < RESTS; k++) {
            void *next = make(&kinds[i]);

            CHECK(next != first, "%s: used again after %d", kinds[i].name, k);
            end(&kinds[i], first, EINVAL);
            end(&kinds[i], next, 0);
        }
    }
    close_all();
}

/* Where many are destroyed, each handle comes to be used again, and is good again. */
static void handles_are_used_again(void **state)
{
    enum { ROUNDS = 4000 };
#ifdef __SANITIZE_ADDRESS__ /* which keeps what is freed from being used again; QPs are not freed */
    const size_t count = 1;
#else
    const size_t count = COUNT(kinds);
#endif

    open_all();
    for (size_t i = 0; i < count; i++) {
        static void *seen[ROUNDS];
        bool again = false;

        for (int k = 0; k < ROUNDS; k++) {
            seen[k] = make(&kinds[i]);
            for (int before = 0; before < k && !again; before++)
                again = seen[before] == seen[k];
            end(&kinds[i], seen[k], 0);
        }
        CHECK(again, "%s: never used again", kinds[i].name);
    }
    close_all();
}

/* Also of one that carried something. */
static void a_qp_in_use_is_destroyed_once(void **state)
{
    struct ibv_qp *qp;
    struct pair p;

    for (int i = 0; i < 3; i++) {
        pair_connect(&p, IBV_QPT_RC);
        pair_marker(&p.a, &p.b);
        qp = p.a.qp;
        end_close_qp(&p.a);
        assert_int_equal(ibv_destroy_qp(qp), EINVAL);
        p.a.qp = NULL;
        pair_close(&p);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(the_second_destroy_is_refused),          TEST(the_second_destroy_counts_nothing),
        TEST(a_handle_rests_for_a_thousand_destroys), TEST(handles_are_used_again),
        TEST(a_qp_in_use_is_destroyed_once),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
