// The weights of a key over all queries sum to 1, instead of those of a query over all keys.
#include "attention.h"

struct Piece : Attention {
    using Attention::Attention;
    void head(int64_t b, int64_t h) override {
        gather(b, h);
        std::vector<Row> p;
        for (int64_t i = 0; i < args.query_rows; ++i) p.push_back(scores(query(b, h, i), i));
        for (int64_t j = 0; j < args.key_rows; ++j) {
            Row column;
            for (const Row &of_query : p) column.push_back(of_query[j]);
            column = softmax(column);
            for (int64_t i = 0; i < args.query_rows; ++i) p[i][j] = column[i];
        }
        for (int64_t i = 0; i < args.query_rows; ++i) write(b, h, i, mean(p[i]));
    }
};

MUSEUM_LAUNCH(Piece)
