package tollgate.spring;

import io.grpc.ChannelCredentials;
import jakarta.servlet.Filter;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.boot.context.properties.PropertyMapper;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Fallback;
import tollgate.Checker;
import tollgate.ClientOptions;
import tollgate.Metrics;
import tollgate.TollgateClient;
import tollgate.servlet.RateLimitFilter;

/**
 * Makes a client of the server {@code tollgate.target}, and a filter if there is a bean of type {@link
 * RateLimitFilter.Describe}. If there is another bean of type {@link Checker}, such as prepaid slices, it decides for
 * the filter. Beans of types {@link Metrics} and {@link ChannelCredentials} are used if there are any.
 */
@AutoConfiguration
@ConditionalOnProperty("tollgate.target")
@EnableConfigurationProperties(TollgateProperties.class)
public class TollgateAutoConfiguration {

  /** Opens the connection, so that the first requests do not miss their deadline. */
  @Bean
  @ConditionalOnMissingBean
  // Other beans of type Checker come first.
  @Fallback
  TollgateClient tollgateClient(
      TollgateProperties properties, ObjectProvider<ChannelCredentials> credentials, ObjectProvider<Metrics> metrics)
      throws InterruptedException {
    ClientOptions options = new ClientOptions();
    PropertyMapper map = PropertyMapper.get();
    map.from(properties::timeout).to(options::timeout);
    map.from(properties::onNoAnswer).to(options::onNoAnswer);
    map.from(properties::callsMax).to(options::callsMax);
    map.from(properties::batchMax).to(options::batchMax);
    map.from(properties::queueMax).to(options::queueMax);
    map.from(properties::denyCacheKeys).to(options::denyCacheKeys);
    map.from(properties::denyCacheMax).to(options::denyCacheMax);
    map.from(properties::adminToken).to(options::adminToken);
    credentials.ifAvailable(options::credentials);
    metrics.ifAvailable(options::metrics);
    TollgateClient client = new TollgateClient(properties.target(), options);
    client.warmUp();
    return client;
  }

  /** For applications with servlets. */
  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(Filter.class)
  @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
  static class Servlets {

    /** The filter is behind those with an order, such as those of Spring Security. */
    @Bean
    @ConditionalOnBean(RateLimitFilter.Describe.class)
    FilterRegistrationBean<RateLimitFilter> tollgateFilter(Checker checker, RateLimitFilter.Describe describe) {
      return new FilterRegistrationBean<>(new RateLimitFilter(checker, describe));
    }
  }
}
