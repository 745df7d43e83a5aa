/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the segment tells of who made an object, and of events that were read. */
#include "object_fixture.h"
#include "segment/provenance.h"
#include "segment/stack.h"

void qp_retire_sends(uint32_t qpn, uint32_t retires)
{
}

/* Is there a frame of about that function? */
static bool stack_names(uint32_t number, const void *function)
{
    const struct stack_record *stack = segment_stack(number);

    for (uint32_t i = 0; i < stack->depth; i++) {
        if (stack->frame[i] > (uintptr_t)function && stack->frame[i] < (uintptr_t)function + 4096)
            return true;
    }
    return false;
}

static __attribute__((noinline)) uint32_t capture_here(void)
{
    uint32_t number = stack_capture();

    __asm__ volatile("" ::: "memory"); /* no tail call: this frame is looked for */
    return number;
}

static __attribute__((noinline)) uint32_t capture_there(void)
{
    uint32_t number = capture_here();

    __asm__ volatile("" ::: "memory");
    return number;
}

static void a_stack_is_recorded_once(void **state)
{
    uint32_t number[3];

    for (volatile int i = 0; i < 3; i++) /* one call in a loop, and not three */
        number[i] = capture_there();
    assert_int_not_equal(number[0], NO_STACK);
    assert_int_equal(number[1], number[0]);
    assert_int_equal(number[2], number[0]);
    assert_true(stack_names(number[0], (const void *)capture_here));
    assert_true(stack_names(number[0], (const void *)capture_there));
}

/* The same place is no proof of the same way there. */
static void ways_to_one_place_are_told_apart(void **state)
{
    uint32_t here = capture_here(), there = capture_there();

    assert_int_not_equal(here, there);
    assert_int_equal(segment_stack(there)->depth, segment_stack(here)->depth + 1);
}

static void *capture_in_thread(void *argument)
{
    *(uint32_t *)argument = capture_here();
    return NULL;
}

static void threads_have_stacks_of_their_own(void **state)
{
    uint32_t numbers[2];

    for (int i = 0; i < 2; i++) {
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, capture_in_thread, &numbers[i]), 0);
        pthread_join(thread, NULL);
    }
    assert_int_not_equal(numbers[0], NO_STACK);
    assert_int_equal(numbers[0], numbers[1]); /* both came the same way */
    assert_int_not_equal(numbers[0], capture_here());
}

static void modules_of_a_stack_are_known(void **state)
{
    const struct stack_record *stack = segment_stack(capture_here());
    char program[256] = "";
    bool found = false;

    assert_true(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
    for (uint32_t i = 0; i < SEGMENT_MODULES && segment_module(i)->state; i++) {
        const struct module_record *module = segment_module(i);

        if (stack->frame[0] >= module->start && stack->frame[0] < module->end) {
            assert_string_equal(module->path, program);
            found = true;
        }
    }
    assert_true(found);
}

static void objects_say_who_made_them(void **state)
{
    struct cq *cq;
    const struct provenance_record *provenance;

    assert_int_equal(cq_create(context, &(struct cq_attributes){.cqe = 1}, &cq), 0);
    provenance = &cq->record->provenance;
    assert_true(provenance->created_ns != 0);
    assert_int_equal(provenance->created_by, gettid());
    assert_true(stack_names(provenance->created_stack, (const void *)objects_say_who_made_them));
    assert_int_equal(provenance->destroying_ns, 0);
    assert_int_equal(cq_destroy(cq), 0);
}

static void a_refused_destroy_is_explained(void **state)
{
    struct channel *channel;
    struct cq *cq;

    assert_int_equal(channel_create(context, &channel), 0);
    assert_int_equal(cq_create(context, &(struct cq_attributes){.cqe = 1, .channel = channel}, &cq), 0);
    assert_int_equal(channel_destroy(channel), -EBUSY);
    assert_int_equal(port_calls.explained[EXPLAIN_BUSY], 1);
    assert_int_equal(port_calls.explained_kind, OBJECT_CHANNEL);
    assert_int_equal(port_calls.explained_number, channel->number);
    assert_int_equal(cq_destroy(cq), 0);
    assert_int_equal(channel_destroy(channel), 0);
    assert_int_equal(port_calls.explained[EXPLAIN_BUSY], 1);
    assert_int_equal(port_calls.losses_noted, port_calls.losses_told);
    assert_true(port_calls.losses_noted >= 1);
}

/* Told after a second, and again when it ends; here the acknowledgement comes when it was told. */
static void *destroy_cq(void *argument)
{
    cq_destroy(argument);
    return NULL;
}

static void a_destroy_that_waits_says_so_and_that_it_goes_on(void **state)
{
    struct channel *channel;
    struct cq *cq, *ready;
    pthread_t thread;

    assert_int_equal(channel_create(context, &channel), 0);
    assert_int_equal(cq_create(context, &(struct cq_attributes){.cqe = 1, .channel = channel}, &cq), 0);
    assert_int_equal(cq_arm(cq, false), 0);
    cq_push(cq, &(struct cqe){.wr_id = 1}, false);
    assert_int_equal(channel_get_event(channel, &ready), 0);
    assert_int_equal(pthread_create(&thread, NULL, destroy_cq, cq), 0);
    while (__atomic_load_n(&port_calls.explained[EXPLAIN_BLOCKED], __ATOMIC_ACQUIRE) == 0)
        sched_yield();
    assert_int_equal(port_calls.explained_kind, OBJECT_CQ);
    assert_int_equal(port_calls.explained_number, cq->number);
    assert_true(cq->record->provenance.destroying_ns != 0);
    assert_int_not_equal(cq->record->provenance.destroying_by, gettid());
    assert_int_equal(port_calls.explained[EXPLAIN_RESUMED], 0);
    cq_ack_events(cq, 1);
    pthread_join(thread, NULL);
    assert_int_equal(port_calls.explained[EXPLAIN_RESUMED], 1);
    assert_int_equal(channel_destroy(channel), 0);
}

static const struct item_record *item_of(enum object_kind kind)
{
    for (uint32_t i = 0; i < 64; i++) {
        const struct item_record *item = segment_item(i);

        if (item->state == OBJECT_ALIVE && item->kind == kind && item->context == context->number)
            return item;
    }
    return NULL;
}

static void contexts_and_channels_have_records(void **state)
{
    struct channel *channel;
    struct cq *cq;

    assert_non_null(item_of(OBJECT_CONTEXT));
    assert_null(item_of(OBJECT_CHANNEL));
    assert_int_equal(channel_create(context, &channel), 0);
    assert_int_equal(item_of(OBJECT_CHANNEL)->number, channel->number);
    assert_int_equal(cq_create(context, &(struct cq_attributes){.cqe = 1, .channel = channel}, &cq), 0);
    assert_int_equal(item_of(OBJECT_CHANNEL)->users, 1);
    assert_int_equal(cq_destroy(cq), 0);
    assert_int_equal(item_of(OBJECT_CHANNEL)->users, 0);
    assert_int_equal(channel_destroy(channel), 0);
    assert_null(item_of(OBJECT_CHANNEL));
}

static void thread_domains_have_records_and_keys_say_what_they_are_of(void **state)
{
    struct ibv_td_init_attr td_attr = {.comp_mask = 0};
    struct ibv_parent_domain_init_attr attr = {.comp_mask = 0};
    struct pd *pd, *parent;
    struct td *td;
    struct mw *mw;

    assert_int_equal(pd_allocate(context, &pd), 0);
    assert_int_equal(td_allocate(context, &td_attr, &td), 0);
    assert_ptr_equal(item_of(OBJECT_TD), segment_item(td->item));
    attr.pd = &pd->ibv;
    attr.td = &td->ibv;
    assert_int_equal(parent_domain_allocate(context, &attr, &parent), 0);
    assert_int_equal(parent->record->td, td->item);
    assert_int_equal(mw_allocate(parent, IBV_MW_TYPE_1, &mw), 0);
    assert_int_equal(segment_key_provenance(mw->slot)->domain, parent->record_number + 1);
    assert_int_equal(td_deallocate(td), -EBUSY);
    assert_int_equal(port_calls.explained_kind, OBJECT_TD);
    assert_int_equal(port_calls.explained_number, td->item);
    assert_int_equal(mw_deallocate(mw), 0);
    assert_int_equal(pd_deallocate(parent), 0);
    assert_int_equal(td_deallocate(td), 0);
    assert_null(item_of(OBJECT_TD));
    assert_int_equal(pd_deallocate(pd), 0);
}

static void the_first_unacknowledged_event_is_remembered(void **state)
{
    struct event_record events = {0};
    uint64_t first;

    events.raised = 3;
    provenance_event_read(&events, IBV_EVENT_COMM_EST, 1);
    assert_int_equal(events.type, IBV_EVENT_COMM_EST);
    assert_int_equal(events.read_by, gettid());
    assert_true(stack_names(events.read_stack, (const void *)the_first_unacknowledged_event_is_remembered));
    first = events.read_ns;
    provenance_event_read(&events, IBV_EVENT_QP_FATAL, 2);
    assert_int_equal(events.type, IBV_EVENT_COMM_EST);
    assert_int_equal(events.read_ns, first);
    events.acked = 2;
    provenance_event_read(&events, IBV_EVENT_QP_FATAL, 3);
    assert_int_equal(events.type, IBV_EVENT_QP_FATAL);
    assert_int_equal(events.reported, 3);
}

/* librdmacm itself reads and acknowledges some; which one the program has left is told. */
static void the_event_that_is_left_is_known(void **state)
{
    struct event_record events = {.raised = 2};

    provenance_event_read(&events, IBV_EVENT_COMM_EST, 1);
    provenance_event_read(&events, IBV_EVENT_QP_FATAL, 2);
    events.acked = 1;
    provenance_event_acked(&events, IBV_EVENT_QP_FATAL);
    assert_int_equal(events.type, IBV_EVENT_COMM_EST);
    provenance_event_acked(&events, IBV_EVENT_COMM_EST);
    assert_int_equal(events.type, IBV_EVENT_QP_FATAL);
    assert_int_equal(events.read_by, gettid());
    assert_true(stack_names(events.read_stack, (const void *)the_event_that_is_left_is_known));
}

static void without_explanations_no_stacks_are_taken(void **state)
{
    struct cq *cq;

    assert_int_equal(provenance_stamp(), STAMP_NONE);
    assert_int_equal(cq_create(context, &(struct cq_attributes){.cqe = 1}, &cq), 0);
    assert_int_equal(cq->record->provenance.created_by, gettid());
    assert_int_equal(cq->record->provenance.created_stack, NO_STACK);
    assert_int_equal(cq_destroy(cq), 0);
    provenance_explain(true); /* from here on they are on: nothing turns them off again */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_explanations_no_stacks_are_taken),
        cmocka_unit_test(a_stack_is_recorded_once),
        cmocka_unit_test(ways_to_one_place_are_told_apart),
        cmocka_unit_test(threads_have_stacks_of_their_own),
        cmocka_unit_test(modules_of_a_stack_are_known),
        cmocka_unit_test(objects_say_who_made_them),
        cmocka_unit_test(a_refused_destroy_is_explained),
        cmocka_unit_test(a_destroy_that_waits_says_so_and_that_it_goes_on),
        cmocka_unit_test(contexts_and_channels_have_records),
        cmocka_unit_test(thread_domains_have_records_and_keys_say_what_they_are_of),
        cmocka_unit_test(the_first_unacknowledged_event_is_remembered),
        cmocka_unit_test(the_event_that_is_left_is_known),
    };

    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
