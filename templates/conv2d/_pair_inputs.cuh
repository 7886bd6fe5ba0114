#pragma once

// What a lane of mma_pair has of its strips. Needs the words of the element type, _split_tf32.cuh and the family's constants.

// A lane's inputs of a row, words of two strips; part by part, as filters.
struct Inputs {
    Word of[PARTS][CHANNEL_GROUPS][WINDOW][2];

    // Of the strips that begin at `strips`, in a group's first channel; rows with `odd` set begin in the middle of a word.
    __device__ __forceinline__ void load(const Word* const (&strips)[2], const bool (&odd)[2], int row) {
#pragma unroll
        for (int group = 0; group < CHANNEL_GROUPS; ++group) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if constexpr (SHIFTED) {
                    // Of every other row the words are put together of two neighbours.
                    const unsigned selected = odd[i] == (row % 2 == 0) ? 0x5432 : 0x3210;
                    const Word* const at = strips[i] + group * (4 * PLANE) + row * W / 2 + (row % 2 == 1 && odd[i] ? 1 : 0);
                    Word loaded = at[0];
#pragma unroll
                    for (int j = 0; j < WINDOW; ++j) {
                        const Word next = at[j + 1];
                        of[0][group][j][i] = __byte_perm(loaded, next, selected);
                        loaded = next;
                    }
                } else {
#pragma unroll
                    for (int word = 0; word < WINDOW; word += LOADED) {
                        const Word* const at = strips[i] + group * (4 * PLANE) + row * (W / WORD_TAPS) + word;
                        const auto loaded = *reinterpret_cast<const AlignedArray<Word, LOADED>*>(at);
#pragma unroll
                        for (int j = 0; j < LOADED && word + j < WINDOW; ++j) {
#pragma unroll
                            for (int part = 0; part < PARTS; ++part) {
                                of[part][group][word + j][i] = PARTS == 1 ? rounded(loaded.at[j]) : word_part<PARTS>(loaded.at[j], part);
                            }
                        }
                    }
                }
            }
        }
    }

    // Of a half step, for one of a lane's columns.
    __device__ __forceinline__ const Word (&half_step(int part, int half, int column) const)[2] {
        return of[part][half / WORDS][column * COLUMN_WORDS + half % WORDS];
    }
};

// A strip's place among the strips of a row tile: eights of each row, then what is left of all rows, column by column.
struct Place {
    int row, column;

    __device__ __forceinline__ explicit Place(int strip) {
        const int tail = strip - ROW_GROUPS * EIGHTS * 8;
        if (EIGHTS == 0 || tail >= 0) {
            row = tail % ROW_GROUPS;
            column = EIGHTS * 8 + tail / ROW_GROUPS;
        } else {
            row = strip / (EIGHTS > 0 ? EIGHTS * 8 : 1);
            column = strip % (EIGHTS > 0 ? EIGHTS * 8 : 1);
        }
    }
};
