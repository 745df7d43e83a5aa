/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* No more of an instruction is understood than which operand is in memory, and where. */
#include "decode.h"

#include <stddef.h>

enum { MAP_ONE, MAP_0F, MAP_38, MAP_3A }; /* opcodes of one byte, behind 0F, 0F 38, 0F 3A */

struct insn {
    const uint8_t *at; /* what is not decoded yet */
    unsigned map, opcode, mod, reg, rm;
    bool rex_w, rex_x, rex_b;
    bool rep, operand_16, address_32;
    unsigned vector; /* EVEX: bytes that an 8-bit displacement counts in; 0: it counts in bytes */
    uint64_t segment;
};

/* --- which opcodes -------------------------------------------------------------------------------------- */

static bool has_modrm(const struct insn *insn)
{
    const unsigned o = insn->opcode;

    if (insn->map == MAP_ONE) {
        if (o < 0x40)
            return (o & 7) < 4;
        return o == 0x63 || o == 0x69 || o == 0x6b || (o >= 0x80 && o <= 0x8f) || o == 0xc0 || o == 0xc1 ||
               o == 0xc6 || o == 0xc7 || (o >= 0xd0 && o <= 0xd3) || (o >= 0xd8 && o <= 0xdf) || o == 0xf6 ||
               o == 0xf7 || o == 0xfe || o == 0xff;
    }
    if (insn->map == MAP_0F)
        return !(o == 0x05 || o == 0x06 || o == 0x07 || o == 0x08 || o == 0x09 || o == 0x0b || o == 0x0e ||
                 (o >= 0x30 && o <= 0x37) || o == 0x77 || (o >= 0x80 && o <= 0x8f) || o == 0xa0 ||
                 o == 0xa1 || o == 0xa2 || o == 0xa8 || o == 0xa9 || o == 0xaa || (o >= 0xc8 && o <= 0xcf));
    return true;
}

static bool only_loads_one(const struct insn *insn)
{
    const unsigned o = insn->opcode;

    if (o < 0x40) /* op r, r/m; and cmp */
        return (o & 7) == 2 || (o & 7) == 3 || o >= 0x38;
    switch (o) {
    case 0x63: /* movsxd */
    case 0x69: /* imul */
    case 0x6b:
    case 0x84: /* test */
    case 0x85:
    case 0x8a: /* mov r, m */
    case 0x8b:
    case 0x8d: /* lea */
    case 0x8e:
    case 0xd8: /* x87 arithmetic */
    case 0xdc:
        return true;
    case 0x80: /* cmp */
    case 0x81:
    case 0x83:
        return insn->reg == 7;
    case 0xf6: /* test, mul, div; not and neg store */
    case 0xf7:
        return insn->reg != 2 && insn->reg != 3;
    case 0xff: /* call, jmp, push: of a pointer in memory */
        return insn->reg >= 2;
    default:
        return false;
    }
}

/* Also of VEX and EVEX, whose opcodes are these. */
static bool only_loads_0f(const struct insn *insn)
{
    const unsigned o = insn->opcode;

    if (o == 0xba)
        return insn->reg == 4; /* bt; the others change the bit */
    if ((o >= 0x40 && o <= 0x4f) || (o >= 0x51 && o <= 0x6f) || (o >= 0xd8 && o <= 0xe6) ||
        (o >= 0xe8 && o <= 0xf6) || (o >= 0xf8 && o <= 0xfe))
        return true;
    switch (o) {
    case 0x0d: /* prefetch, nop */
    case 0x18:
    case 0x19:
    case 0x1c:
    case 0x1d:
    case 0x1e:
    case 0x1f:
    case 0x10: /* moves to a register */
    case 0x12:
    case 0x14:
    case 0x15:
    case 0x16:
    case 0x28:
    case 0x2a: /* conversions, comparisons */
    case 0x2c:
    case 0x2d:
    case 0x2e:
    case 0x2f:
    case 0x70:
    case 0x74:
    case 0x75:
    case 0x76:
    case 0xaf: /* imul */
    case 0xb6: /* movzx, movsx */
    case 0xb7:
    case 0xbe:
    case 0xbf:
    case 0xb8: /* popcnt, tzcnt, lzcnt */
    case 0xbc:
    case 0xbd:
    case 0xc2:
    case 0xc4:
    case 0xc6:
    case 0xd1:
    case 0xd2:
    case 0xd3:
    case 0xd4:
    case 0xd5:
        return true;
    default:
        return false;
    }
}

static bool only_loads(const struct insn *insn)
{
    return insn->map == MAP_ONE ? only_loads_one(insn) : insn->map == MAP_0F && only_loads_0f(insn);
}

/* Memory operands that are not where ModRM says, or reach further: bit strings, masked stores to rdi, states of
 * threads, scatters, what the kernel and the processor store. */
static bool stores_anywhere(const struct insn *insn)
{
    const unsigned o = insn->opcode;

    if (insn->map == MAP_ONE)
        return o == 0x6c || o == 0x6d || o == 0xc8 || o == 0xdd || (o == 0x8f && insn->reg != 0);
    if (insn->map == MAP_0F)
        return o == 0x01 || o == 0xab || o == 0xb3 || o == 0xbb || (o == 0xae && insn->mod != 3) ||
               (o == 0xc7 && insn->reg >= 2 && insn->mod != 3) || (o == 0xf7);
    if (insn->map == MAP_38)
        return (o >= 0xa0 && o <= 0xa3) || o == 0xf8 || o == 0xf9;
    return false;
}

/* --- where ---------------------------------------------------------------------------------------------- */

static uint64_t reg_of(const struct user_regs_struct *regs, unsigned number)
{
    const uint64_t values[16] = {regs->rax, regs->rcx, regs->rdx, regs->rbx, regs->rsp, regs->rbp,
                                 regs->rsi, regs->rdi, regs->r8,  regs->r9,  regs->r10, regs->r11,
                                 regs->r12, regs->r13, regs->r14, regs->r15};

    return values[number];
}

static int32_t displacement_32(const uint8_t *at)
{
    return (int32_t)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}

/* False: relative to rip. */
static bool effective_address(struct insn *insn, const struct user_regs_struct *regs, uint64_t *ret_address)
{
    uint64_t address = 0;
    bool bare = false; /* a displacement of 32 bits, although mod is 0 */

    if (insn->rm == 4) {
        const unsigned sib = *insn->at++;
        const unsigned index = (sib >> 3 & 7) | (insn->rex_x ? 8u : 0u);
        const unsigned base = sib & 7;

        if (index != 4)
            address += reg_of(regs, index) << (sib >> 6);
        bare = base == 5 && insn->mod == 0;
        if (!bare)
            address += reg_of(regs, base | (insn->rex_b ? 8u : 0u));
    } else if (insn->rm == 5 && insn->mod == 0) {
        return false;
    } else {
        address = reg_of(regs, insn->rm | (insn->rex_b ? 8u : 0u));
    }
    if (insn->mod == 1)
        address += (uint64_t)((int64_t)(int8_t)*insn->at * (int64_t)(insn->vector ? insn->vector : 1));
    else if (insn->mod == 2 || bare)
        address += (uint64_t)(int64_t)displacement_32(insn->at);
    if (insn->address_32)
        address = (uint32_t)address;
    *ret_address = address + insn->segment;
    return true;
}

/* --- prefixes ------------------------------------------------------------------------------------------- */

static void take_legacy(struct insn *insn, const struct user_regs_struct *regs)
{
    for (unsigned i = 0; i < 14; i++) {
        switch (*insn->at) {
        case 0xf2:
        case 0xf3:
            insn->rep = true;
            break;
        case 0x64:
            insn->segment = regs->fs_base;
            break;
        case 0x65:
            insn->segment = regs->gs_base;
            break;
        case 0x66:
            insn->operand_16 = true;
            break;
        case 0x67:
            insn->address_32 = true;
            break;
        case 0x26:
        case 0x2e:
        case 0x36:
        case 0x3e:
        case 0xf0:
            break;
        default:
            return;
        }
        insn->at++;
    }
}

/* False: an encoding that is not known. */
static bool take_vector_prefix(struct insn *insn)
{
    const uint8_t *const p = insn->at;

    if (p[0] == 0xc5) {
        insn->map = MAP_0F;
        insn->opcode = p[2];
        insn->at += 3;
        return true;
    }
    insn->rex_x = !(p[1] & 0x40);
    insn->rex_b = !(p[1] & 0x20);
    insn->map = p[1] & (p[0] == 0xc4 ? 0x1fu : 7u);
    if (insn->map == MAP_ONE || insn->map > MAP_3A)
        return false;
    if (p[0] == 0xc4) {
        insn->opcode = p[3];
        insn->at += 4;
        return true;
    }
    insn->opcode = p[4];
    insn->at += 5;
    if (p[5] >> 6 == 3) /* of registers */
        return true;
    /* Moves of whole vectors; of others the displacement counts in what depends on the instruction. */
    if (insn->map == MAP_0F && !(p[3] & 0x10) &&
        (insn->opcode == 0x7f || insn->opcode == 0xe7 || insn->opcode == 0x11 || insn->opcode == 0x29) &&
        (insn->opcode != 0x11 || !(p[2] & 2)))
        insn->vector = 16u << (p[3] >> 5 & 3);
    return insn->vector || (insn->map == MAP_0F && only_loads_0f(insn));
}

static void take_opcode(struct insn *insn)
{
    if ((*insn->at & 0xf0) == 0x40) {
        insn->rex_w = *insn->at & 8;
        insn->rex_x = *insn->at & 2;
        insn->rex_b = *insn->at & 1;
        insn->at++;
    }
    insn->opcode = *insn->at++;
    if (insn->opcode != 0x0f)
        return;
    insn->map = MAP_0F;
    insn->opcode = *insn->at++;
    if (insn->opcode != 0x38 && insn->opcode != 0x3a)
        return;
    insn->map = insn->opcode == 0x38 ? MAP_38 : MAP_3A;
    insn->opcode = *insn->at++;
}

static unsigned operand_size(const struct insn *insn)
{
    return !(insn->opcode & 1) ? 1 : insn->rex_w ? 8 : insn->operand_16 ? 2 : 4;
}

struct access_of decode(const uint8_t *code, const struct user_regs_struct *regs)
{
    struct insn insn = {.at = code};
    struct access_of result = {.access = ACCESS_ANYWHERE};
    unsigned o;

    take_legacy(&insn, regs);
    if (*insn.at == 0xc5 || *insn.at == 0xc4 || *insn.at == 0x62) {
        if (!take_vector_prefix(&insn))
            return result;
    } else {
        take_opcode(&insn);
    }
    o = insn.opcode;
    if (insn.map == MAP_ONE && (o == 0xa4 || o == 0xa5 || o == 0xaa || o == 0xab)) { /* movs, stos */
        result.access = ACCESS_STRING;
        result.repeats = insn.rep;
        result.address = insn.address_32 ? (uint32_t)regs->rdi : regs->rdi;
        result.size = operand_size(&insn);
        result.bytes = (unsigned)(insn.at - code);
        result.length = result.size * (insn.rep ? regs->rcx : 1);
        if (!result.length)
            result.access = ACCESS_NONE;
        return result;
    }
    if (insn.map == MAP_ONE && (o == 0xa2 || o == 0xa3)) /* mov to an address of 64 bits in the instruction */
        return result;
    if (!has_modrm(&insn)) {
        if (!stores_anywhere(&insn))
            result.access = ACCESS_NONE;
        return result;
    }
    insn.mod = *insn.at >> 6;
    insn.reg = *insn.at >> 3 & 7;
    insn.rm = *insn.at++ & 7;
    if (stores_anywhere(&insn))
        return result;
    if (insn.mod == 3 || only_loads(&insn) || !effective_address(&insn, regs, &result.address))
        result.access = ACCESS_NONE;
    else
        result.access = ACCESS_AT;
    return result;
}
